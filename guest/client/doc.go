// Package client is the host's half of the guest agent: a client of godwit-init that stays the
// same over new sockets, processes and restores of the VM below it. The shim calls it.
package client
