package shim

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// A kubelet's port-forward ends in containerd, which dials localhost in the pod's network namespace on the host. There
// the guest's localhost is not. So the shim takes these connections, and the guest's agent dials.

// maxForwards bounds the forwarded connections of a pod. A further one waits until the kernel's queue of the listener
// is full. Each costs the shim some goroutines, and what a lane of the agent holds.
const maxForwards = 32

// forwarding is how a pod's ports are forwarded.
type forwarding struct {
	vm    *VM
	agent Agent
	// free are the slots of connections that can be made. The guest knows a connection by its slot: whatever a shim
	// has left there is removed before the slot is used again.
	free chan int
	once sync.Once // logs that the guest cannot do so
}

// forwardPorts takes connections to localhost until ctx ends. It is part of the VM's traffic: while an operation holds
// the VM there are none. Without the listeners the pod runs on.
func (p *pod) forwardPorts(ctx context.Context) {
	vm := p.vm
	netns := vm.journal.Load().NetNS
	if netns == "" || vm.host.Localhost == nil {
		return
	}
	f := &forwarding{vm: vm, agent: vm.guest(), free: make(chan int, maxForwards)}
	for slot := range maxForwards {
		f.free <- slot
	}
	listeners, err := vm.host.Localhost(netns)
	if err != nil {
		vm.log.Warn("ports of the pod cannot be forwarded (kubectl port-forward)", "error", err)
		return
	}
	var all sync.WaitGroup
	for _, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer func() { stop(); _ = l.Close() }()
		all.Go(func() { f.accept(ctx, l) })
	}
	all.Wait()
}

// accept forwards what comes, and returns when all of it has ended.
func (f *forwarding) accept(ctx context.Context, l net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for ctx.Err() == nil {
		var slot int
		select {
		case slot = <-f.free:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			f.free <- slot
			retry.Sleep(ctx, retryWait)
			continue
		}
		all.Go(func() {
			f.forward(ctx, conn.(*net.TCPConn), fmt.Sprintf("forward-%d", slot))
			f.free <- slot
		})
	}
}

// forward carries one connection. Who made it sees a reset if the guest has nothing that accepts it.
func (f *forwarding) forward(ctx context.Context, conn *net.TCPConn, id string) {
	port := conn.LocalAddr().(*net.TCPAddr).Port
	if err := f.connect(ctx, id, port); err != nil {
		f.tell(port, err)
		reset(conn)
		return
	}
	(&forwarded{agent: f.agent, id: id, conn: conn}).carry(ctx)
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	if err := f.remove(ctx, id); err != nil {
		f.vm.log.Debug("end of a forwarded connection", "port", port, "error", err)
	}
}

// connect has the guest dial. A connection that still has the id belongs to no client.
func (f *forwarding) connect(ctx context.Context, id string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	if err := f.remove(ctx, id); err != nil {
		return err
	}
	_, err := f.agent.Connect(ctx, &agentv1.ConnectRequest{Id: id, Port: uint32(port)})
	return err
}

// remove has the guest forget a connection. Once ctx has ended the guest is not asked: who uses the slot next does it.
func (f *forwarding) remove(ctx context.Context, id string) error {
	_, err := f.agent.Remove(ctx, &agentv1.RemoveRequest{Id: id})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// tell logs why a connection was not made, once if it is so for all.
func (f *forwarding) tell(port int, err error) {
	if errdefs.IsNotImplemented(err) {
		f.once.Do(func() {
			f.vm.log.Warn("ports of the pod cannot be forwarded: the agent of its guest is older", "error", err)
		})
		return
	}
	f.vm.log.Info("forward port", "port", port, "error", err)
}

// reset ends a connection so that its other end sees an error.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
