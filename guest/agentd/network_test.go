package agentd

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// What the host had said before the VM slept is not done after the wake: the NIC that is found then has addresses of
// another node. So it is with what a caller has given up.
func TestAddressesOfBeforeTheWake(t *testing.T) {
	var found, looked atomic.Bool
	touched := errors.New("the NIC is looked at")
	s := newService(newContainer("", "", ""))
	s.held, s.opts.Network = true, func() error { return nil }
	s.network.find = func(string) (netlink.Link, error) {
		looked.Store(true)
		if !found.Load() {
			return nil, errdefs.ErrNotFound
		}
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "none", HardwareAddr: net.HardwareAddr{2}}}, nil
	}
	s.network.set = func(*agentv1.NIC, netlink.Link) error { return touched }
	nics := []*agentv1.NIC{{Mac: "02:00:00:00:00:01"}}
	ask := func(ctx context.Context) <-chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := s.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: nics})
			failed <- err
		}()
		return failed
	}
	wants := func(what string, failed <-chan error, want error) {
		t.Helper()
		select {
		case err := <-failed:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(15 * time.Second): // a NIC may take 20
			t.Fatalf("%s: it goes on", what)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	given := ask(ctx)
	for !looked.Load() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wants("given up", given, context.Canceled)

	looked.Store(false)
	before := ask(t.Context())
	for !looked.Load() {
		time.Sleep(time.Millisecond)
	}
	second := ask(t.Context()) // waits for the first
	s.network.wakes.Add(1)
	found.Store(true)
	wants("before the wake", before, errdefs.ErrAborted)
	<-second
	wants("after the wake", ask(t.Context()), touched)
}
