// Package scale measures what a fleet of VirtualMachines costs the operator and the API server. Its tests run the
// program godwit-operator against a real API server. Nodes are fake: they speak to the operator as godwitd does, and
// run nothing.
package scale
