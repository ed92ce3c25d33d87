package vmmtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
)

func (v *vm) nicSeen(ctx context.Context, want bool) error {
	_, err := v.guest.await(ctx, func(t tick) bool { return strings.Contains(t.Devices, mac) == want })
	if err != nil {
		return fmt.Errorf("NIC seen %v: %w", want, err)
	}
	if got := slices.Contains(v.Process().NICs, "net0"); got != want {
		return fmt.Errorf("NIC in Process: got %v, want %v", got, want)
	}
	if gone, err := v.Ejected(ctx, "net0"); err != nil || gone == want {
		return fmt.Errorf("NIC ejected: got %v, %v, want %v", gone, err, !want)
	}
	return nil
}

// bootAndRemove boots a VM with a NIC and removes the NIC.
func (b *bench) bootAndRemove(ctx context.Context) (*vm, vmm.NIC, error) {
	var nic vmm.NIC
	v, err := b.boot(ctx, func(v *vm) (err error) {
		nic, err = v.addNIC(b)
		v.cfg.NICs = []vmm.NIC{nic}
		return err
	})
	if err != nil {
		return nil, nic, err
	}
	if err := v.nicSeen(ctx, true); err != nil {
		return nil, nic, err
	}
	if err := v.RemoveNIC(ctx, nic.ID); err != nil {
		return nil, nic, err
	}
	return v, nic, v.nicSeen(ctx, false)
}

func nics(ctx context.Context, b *bench) error {
	v, nic, err := b.bootAndRemove(ctx)
	if err != nil {
		return err
	}
	if err := v.sawEvents(ctx, vmm.DeviceRemoved); err != nil {
		return err
	}
	// Twice: what was left over by the first round shows in the second.
	for range 2 {
		if err := v.AddNIC(ctx, nic); err != nil {
			return err
		}
		if err := v.nicSeen(ctx, true); err != nil {
			return err
		}
		if err := v.AddNIC(ctx, nic); !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("add of a NIC that is there: got %v, want AlreadyExists", err)
		}
		if err := v.RemoveNIC(ctx, nic.ID); err != nil {
			return err
		}
		if err := v.nicSeen(ctx, false); err != nil {
			return err
		}
	}
	return nil
}

func nicAfterRestore(ctx context.Context, b *bench) error {
	v, _, err := b.bootAndRemove(ctx)
	if err != nil {
		return err
	}
	w, _, err := b.move(ctx, v, func(w *vm) error { return w.enter(b) })
	if err != nil {
		return err
	}
	nic, err := w.addNIC(b)
	if err != nil {
		return err
	}
	if err := w.AddNIC(ctx, nic); err != nil {
		return err
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	return w.nicSeen(ctx, true)
}

func unknownNIC(ctx context.Context, b *bench) error {
	v, err := b.start(ctx, nil)
	if err != nil {
		return err
	}
	if err := v.Resume(ctx); err != nil {
		return err
	}
	if err := v.RemoveNIC(ctx, "net9"); !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove of an unknown NIC: got %v, want NotFound", err)
	}
	return nil
}
