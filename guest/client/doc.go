// Package client is the host's half of the guest agent: a client of godwit-init that
// outlives the sockets, processes and restores of the VM below it. The shim calls it.
package client
