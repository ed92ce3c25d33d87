package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// dialTimeout of a shim's socket. A shim that lives accepts at once.
const dialTimeout = 2 * time.Second

// answerTimeout of a shim's word on its VM, which it has at hand: one that is stopped, or
// hangs, holds up none of the node's other VMs. A variable for the tests.
var answerTimeout = 5 * time.Second

// Machines reaches the shims of this node's VMs. It keeps no connection: a shim may die
// and be replaced by one that adopts its VM between any two calls.
type Machines struct{ Config *config.Config }

// call runs one call on the shim of vm. A VM of which nothing is here (Known) is NotFound, one
// whose shim does not answer Unavailable.
func (m *Machines) call(ctx context.Context, vm *nodev1.VM, do func(machinev1.MachineService) error) error {
	socket := m.Config.MachineSocket(vm.GetNamespace(), vm.GetId())
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(dial, "unix", socket)
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() { // it listens, and takes no connection
		return fmt.Errorf("dial shim of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), context.DeadlineExceeded)
	}
	if err != nil {
		return fmt.Errorf("shim of VM %s/%s: %w: %w", vm.GetNamespace(), vm.GetId(), m.without(vm, err), err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	if err := do(machinev1.NewMachineClient(client)); err != nil {
		if errors.Is(err, ttrpc.ErrClosed) {
			return fmt.Errorf("shim of VM %s/%s went away: %w", vm.GetNamespace(), vm.GetId(), errdefs.ErrUnavailable)
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) { // the caller's: it has no status
			return fmt.Errorf("ask shim of VM %s/%s: %w", vm.GetNamespace(), vm.GetId(), err)
		}
		return errgrpc.ToNative(err)
	}
	return nil
}

// Query answers what the shim knows. One that does not answer in time is alive, which
// DeadlineExceeded says.
func (m *Machines) Query(ctx context.Context, vm *nodev1.VM) (resp *machinev1.QueryResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Query(ctx, &machinev1.QueryRequest{})
		return err
	})
	return resp, err
}

// Capture pauses the VM and pushes it.
func (m *Machines) Capture(ctx context.Context, vm *nodev1.VM,
	req *machinev1.CaptureRequest) (resp *machinev1.CaptureResponse, err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Capture(ctx, req)
		return err
	})
	return resp, err
}

// Vote stops the VMM for good, or until Abort.
func (m *Machines) Vote(ctx context.Context, vm *nodev1.VM, req *machinev1.VoteRequest) (resp *machinev1.VoteResponse,
	err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Vote(ctx, req)
		return err
	})
	return resp, err
}

// Abort gives the VM back to this node.
func (m *Machines) Abort(ctx context.Context, vm *nodev1.VM, req *machinev1.AbortRequest) error {
	return m.call(ctx, vm, func(s machinev1.MachineService) error {
		_, err := s.Abort(ctx, req)
		return err
	})
}

// Release ends the VM on this node after the commit.
func (m *Machines) Release(ctx context.Context, vm *nodev1.VM, req *machinev1.ReleaseRequest) error {
	return m.call(ctx, vm, func(s machinev1.MachineService) error {
		_, err := s.Release(ctx, req)
		return err
	})
}

// Tell has the VM's workload see that a snapshot of it is durable.
func (m *Machines) Tell(ctx context.Context, vm *nodev1.VM, req *machinev1.TellRequest) error {
	return m.call(ctx, vm, func(s machinev1.MachineService) error {
		_, err := s.Tell(ctx, req)
		return err
	})
}

// End ends a VM that runs on without a task that containerd knows.
func (m *Machines) End(ctx context.Context, vm *nodev1.VM) error {
	return m.call(ctx, vm, func(s machinev1.MachineService) error {
		_, err := s.End(ctx, &machinev1.EndRequest{})
		return err
	})
}

// EndSuperseded ends a VM that its record has given to somebody else under that generation; the
// shim asks the record too.
func (m *Machines) EndSuperseded(ctx context.Context, vm *nodev1.VM, generation uint64, reason string) error {
	return m.call(ctx, vm, func(s machinev1.MachineService) error {
		_, err := s.End(ctx, &machinev1.EndRequest{Generation: generation, Reason: reason})
		return err
	})
}

// Offer asks what a destination must be able to take.
func (m *Machines) Offer(ctx context.Context, vm *nodev1.VM,
	req *machinev1.OfferRequest) (resp *machinev1.OfferResponse, err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Offer(ctx, req)
		return err
	})
	return resp, err
}

// Send streams the VM to its destination.
func (m *Machines) Send(ctx context.Context, vm *nodev1.VM, req *machinev1.SendRequest) (resp *machinev1.SendResponse,
	err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Send(ctx, req)
		return err
	})
	return resp, err
}

// Incoming asks how a source reaches the destination here.
func (m *Machines) Incoming(ctx context.Context, vm *nodev1.VM,
	req *machinev1.IncomingRequest) (resp *machinev1.IncomingResponse, err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Incoming(ctx, req)
		return err
	})
	return resp, err
}

// Run lets a pod run that has moved here.
func (m *Machines) Run(ctx context.Context, vm *nodev1.VM, req *machinev1.RunRequest) (resp *machinev1.RunResponse,
	err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Run(ctx, req)
		return err
	})
	return resp, err
}

// Revert gives the VM back to this node after the controller has committed that.
func (m *Machines) Revert(ctx context.Context, vm *nodev1.VM,
	req *machinev1.RevertRequest) (resp *machinev1.RevertResponse, err error) {
	err = m.call(ctx, vm, func(s machinev1.MachineService) error {
		resp, err = s.Revert(ctx, req)
		return err
	})
	return resp, err
}
