package shim

import (
	"context"
	"maps"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/steps"
)

// Annotations of nerdctl: its hook is a container's that has the first, and asks CNI for what the others say.
const (
	nerdctlState = "nerdctl/state-dir"
	nerdctlIP    = "nerdctl/ip"
	nerdctlIP6   = "nerdctl/ip6"
	nerdctlMAC   = "nerdctl/mac-address"
)

// runCreateHooks is the last step of a Create, of a VM and of a container of a pod. The hooks are told what the guest
// has. nerdctl's hook fails where it cannot have that. It then makes any network, and the guest is re-addressed.
func runCreateHooks(ctx context.Context, u *steps.Undo, t *Task) error {
	u.Add("run poststop hooks", func(ctx context.Context) error {
		return t.bundle.Hooks.Run(ctx, bundle.Poststop, t.hookState(specs.StateStopped))
	})
	run := func(annotations map[string]string) error {
		state := t.hookState(specs.StateCreating)
		state.Annotations = annotations
		for _, kind := range []bundle.HookKind{bundle.Prestart, bundle.CreateRuntime} {
			if err := t.bundle.Hooks.Run(ctx, kind, state); err != nil {
				return err
			}
		}
		return nil
	}
	annotations := t.bundle.Annotations
	nics := t.vm.journal.Load().Spec.NICs
	if t.member != nil || len(nics) == 0 {
		return run(annotations)
	}
	annotations = comesWith(annotations, nics[0])
	if annotations[nerdctlState] == "" {
		return run(annotations)
	}
	err := run(nerdctlComesWith(annotations, nics[0]))
	if err != nil && ctx.Err() == nil {
		t.vm.log.Warn("the hooks cannot give the VM what its guest has: it gets another address", "error", err)
		err = run(annotations)
	}
	return err
}

// comesWith tells the hooks what NIC the guest has already.
func comesWith(annotations map[string]string, nic spec.NIC) map[string]string {
	all := make([]string, 0, len(nic.Addresses))
	for _, prefix := range nic.Addresses {
		all = append(all, prefix.Addr().String())
	}
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[spec.AnnotationAddresses], annotations[spec.AnnotationMAC] = strings.Join(all, ","), nic.MAC
	return annotations
}

// nerdctlComesWith says the same to nerdctl, which takes one address of each family.
func nerdctlComesWith(annotations map[string]string, nic spec.NIC) map[string]string {
	annotations = maps.Clone(annotations)
	annotations[nerdctlMAC] = nic.MAC
	for _, prefix := range nic.Addresses {
		key := nerdctlIP
		if prefix.Addr().Is6() {
			key = nerdctlIP6
		}
		annotations[key] = prefix.Addr().String()
	}
	return annotations
}
