// Package guest is the host's half of the guest agent: a client of godwit-init that
// outlives the sockets, processes and restores of the VM below it. The shim calls it.
// The guest's half is in its sub-packages.
package guest
