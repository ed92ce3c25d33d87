package client

import (
	"context"

	"godwit.dev/godwit/api/guesttool"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// GuestProcess is a process of a VM. Its ids are those of the VM.
type GuestProcess = guesttool.Process

// Top lists the processes of a VM that runs, by pid.
func (c *Client) Top(ctx context.Context, vm *nodev1.VM) ([]GuestProcess, error) {
	var all []GuestProcess
	return all, c.ask(ctx, vm, &all, guesttool.Top)
}
