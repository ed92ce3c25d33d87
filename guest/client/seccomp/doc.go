// Package seccomp turns the seccomp profile of an OCI spec into a filter for the guest's kernel.
// The shim compiles, so that a profile that cannot be honoured fails the Create. Package
// guest/stage installs the filter just before a process of the container starts its program.
package seccomp

//go:generate go run gen.go
