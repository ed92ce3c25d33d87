package vmmtest

import (
	"context"
	"fmt"
	"os"
	"strings"

	"godwit.dev/godwit/vmm"
)

// copyOfTemplate saves a VM as a template, and goes on as its copy, with a disk and a NIC. Where templates are bare,
// the VM of the template has neither.
func copyOfTemplate(ctx context.Context, b *bench) error {
	facts, err := b.env.Driver.Probe(ctx)
	if err != nil {
		return err
	}
	shape := func(v *vm) error {
		nic, err := v.addNIC(b)
		v.cfg.NICs = []vmm.NIC{nic}
		return err
	}
	if facts.BareTemplates {
		shape = func(v *vm) error { v.cfg.Disks = nil; return nil }
	}
	v, err := b.boot(ctx, shape)
	if err != nil {
		return err
	}
	w, at, err := b.move(ctx, v, func(w *vm) error {
		nic, err := w.addNIC(b)
		w.cfg.Template, w.cfg.NICs = true, []vmm.NIC{nic}
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Resume(ctx); err != nil {
		return err
	}
	if err := w.nicSeen(ctx, true); err != nil {
		return err
	}
	return w.writes(ctx, at)
}

// writes waits until the guest's newest lines reach its disk.
func (v *vm) writes(ctx context.Context, after tick) error {
	_, err := v.guest.await(ctx, func(tick) bool {
		data, err := os.ReadFile(v.disk)
		if err != nil {
			return false
		}
		line, _, _ := strings.Cut(string(data), "\n")
		t, ok := parseTick(line)
		return ok && t.Boot == after.Boot && t.N > after.N
	})
	if err != nil {
		return fmt.Errorf("the disk of a copy: %w", err)
	}
	return nil
}
