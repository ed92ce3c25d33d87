package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/starts"
	"godwit.dev/godwit/shim/steps"
)

// askAgain lies between two questions to a guest that has not found its new NIC yet.
const askAgain = 50 * time.Millisecond

// mustPlug reports whether a wake plugs NICs in: into a guest that slept without them, or into one without an agent
// that wakes at another address. The latter asks for its address when its link goes down and up.
func (s *starting) mustPlug() bool {
	sp := s.vm.spec()
	return s.vm.origin.restored && (sp.Recycles() || s.readdress && !sp.HasAgent())
}

// plug gives a restored guest its NICs, once, and waits until it uses their
// addresses. A VM that runs is not ended because its network does not: it is said,
// counted, and tried again while the VM runs.
func (s *starting) plug(ctx context.Context, _ *steps.Undo) error {
	vm := s.vm
	if !s.plugs {
		return nil
	}
	bound := time.Duration(vm.host.Config.Timeouts.NIC)
	if s.late != nil {
		most := 2*bound + time.Duration(vm.host.Config.Timeouts.Boot)
		s.extend(most)
		s.late.Reset(most)
	}
	done, err := s.pluggedIn(ctx)
	if err != nil {
		if err := s.checkAlive(ctx); err != nil {
			return err
		}
		s.address.Result = starts.AddressFailed
		vm.log.Error("plug NICs in; it is tried again while the VM runs", "error", err)
		return nil
	}
	go vm.nic.announce(vm.life)
	begun := time.Now()
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err = vm.nic.addressed(soon)
	s.address = starts.Address{Result: starts.AddressOK, Seconds: time.Since(begun).Seconds()}
	if err != nil {
		if err := s.checkAlive(ctx); err != nil {
			return err
		}
		s.address.Result = starts.AddressTimeout
		vm.log.Error("the guest does not use its address; look at its network driver and DHCP client", "within", bound,
			"error", err)
		return nil
	}
	return vm.nic.plugged(done)
}

// checkAlive tells a VM that was ended, or whose VMM died, from one that only has no network.
func (s *starting) checkAlive(ctx context.Context) error {
	select {
	case <-s.vm.machine.Done():
		return fmt.Errorf("the VMM ended: %w", errdefs.ErrAborted)
	default:
		return ctx.Err()
	}
}

// pluggedIn takes out what came along, if the guest shall ask anew, and plugs all in.
func (s *starting) pluggedIn(ctx context.Context) (plugs, error) {
	vm := s.vm
	if !vm.spec().Recycles() {
		vm.nic.plugging.Lock()
		err := vm.nic.eject(ctx)
		vm.nic.plugging.Unlock()
		if err != nil {
			return plugs{}, err
		}
	}
	return vm.nic.replug(ctx)
}

// addressed returns when the guest uses the addresses of its NICs: its agent says so, or
// it has acknowledged its leases.
func (n *nicSet) addressed(ctx context.Context) error {
	if !n.spec().HasAgent() {
		return n.leases.wait(ctx, n.spec().NICs)
	}
	for {
		err := n.configured(ctx)
		if !errdefs.IsNotFound(err) { // the guest finds a new device in its own time
			return err
		}
		if retry.Sleep(ctx, askAgain); ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// configured has the guest's agent set its NICs.
func (n *nicSet) configured(ctx context.Context) error {
	agent := n.vm.guest()
	if agent == nil {
		return fmt.Errorf("configure NICs: the guest was not met: %w", errdefs.ErrUnavailable)
	}
	_, err := agent.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: agentNICs(n.spec().NICs)})
	return err
}
