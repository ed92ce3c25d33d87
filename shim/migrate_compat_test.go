package shim

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/vmm"
)

// probed is a VMM that says what it is.
type probed struct {
	vmm.Driver
	facts vmm.Facts
	err   error
}

func (p probed) Probe(context.Context) (vmm.Facts, error) { return p.facts, p.err }

// Of each VMM that runs here the classes have the CPU, once, and its version. Equal features are one class.
func TestClasses(t *testing.T) {
	all := map[string]probed{
		"q":     {facts: vmm.Facts{Name: "q", Version: "7.2", Machine: "pc", CPU: "max", Accel: "tcg"}},
		"c":     {facts: vmm.Facts{Name: "c", Version: "53", CPU: "host", Accel: "kvm"}},
		"again": {facts: vmm.Facts{Name: "again", Version: "1", CPU: "host", Accel: "kvm"}},
		"no":    {err: errdefs.ErrNotFound},
	}
	host := &Host{Driver: func(_ context.Context, name string) (vmm.Driver, error) {
		if d, there := all[name]; there {
			return d, nil
		}
		return nil, errdefs.ErrFailedPrecondition
	}}
	cpus, vmms := Classes(t.Context(), host, "q", "c", "no", "other", "again")
	if len(cpus) != 2 || cpus[0] != "tcg/max" || !strings.HasPrefix(cpus[1], "kvm/host") ||
		!slices.Equal(vmms, []string{"q/7.2/pc", "c/53", "again/1"}) {
		t.Errorf("%q, %q", cpus, vmms)
	}
}

// What does not fit is named, on either VMM.
func TestCompatible(t *testing.T) {
	qemu := snapshot.Facts{VMM: "qemu", Version: "7.2.9", Machine: "pc-q35-7.2", Accel: "tcg", CPU: "max"}
	other := snapshot.Facts{VMM: "cloud-hypervisor", Version: "53.0", Accel: "kvm", CPU: "host",
		Features: []string{"avx", "avx2"}}
	for name, tt := range map[string]struct {
		was    snapshot.Facts
		change func(*snapshot.Facts)
		words  []string // none: it fits
	}{
		"QEMU, the same": {qemu, func(*snapshot.Facts) {}, nil},
		"QEMU, newer":    {qemu, func(f *snapshot.Facts) { f.Version = "10.0.1" }, nil},
		"QEMU, older":    {qemu, func(f *snapshot.Facts) { f.Version = "7.1" }, []string{"7.2.9", "older 7.1"}},
		"QEMU, another machine": {qemu, func(f *snapshot.Facts) {
			f.Machine = "pc-q35-10.0"
		}, []string{"machine", "pc-q35-7.2", "pc-q35-10.0"}},
		"QEMU, KVM": {qemu, func(f *snapshot.Facts) {
			f.Accel = "kvm"
		}, []string{"acceleration", "tcg", "kvm"}},
		"QEMU, another CPU": {qemu, func(f *snapshot.Facts) { f.CPU = "host" }, []string{"CPU model", "max", "host"}},
		"QEMU to Cloud Hypervisor": {qemu, func(f *snapshot.Facts) {
			*f = other
		}, []string{"VMM", "qemu", "cloud-hypervisor"}},
		"Cloud Hypervisor to QEMU": {other, func(f *snapshot.Facts) {
			*f = qemu
		}, []string{"VMM", "cloud-hypervisor", "qemu"}},
		"Cloud Hypervisor to QEMU with KVM": {other, func(f *snapshot.Facts) {
			f.VMM, f.Version, f.Machine = "qemu", "10.0", "pc-q35-7.2"
		},
			[]string{"VMM", "cloud-hypervisor", "qemu"}},
		"Cloud Hypervisor, the same":  {other, func(*snapshot.Facts) {}, nil},
		"Cloud Hypervisor, newer":     {other, func(f *snapshot.Facts) { f.Version = "54.0" }, nil},
		"Cloud Hypervisor, two newer": {other, func(f *snapshot.Facts) { f.Version = "55.0" }, nil},
		"Cloud Hypervisor, three newer": {other, func(f *snapshot.Facts) {
			f.Version = "56.0"
		}, []string{"53.0", "56.0", "2 major versions", "between"}},
		"Cloud Hypervisor, patched": {other, func(f *snapshot.Facts) { f.Version = "53.0.1" }, nil},
		"Cloud Hypervisor, older": {other, func(f *snapshot.Facts) {
			f.Version = "52.1"
		}, []string{"53.0", "older 52.1"}},
		"Cloud Hypervisor, a build after it": {other, func(f *snapshot.Facts) { f.Version = "53.0.246" }, nil},
		"Cloud Hypervisor, the release before a build": {func() snapshot.Facts {
			f := other
			f.Version = "53.0.246"
			return f
		}(), func(f *snapshot.Facts) { f.Version = "53.0" }, []string{"53.0.246", "older 53.0"}},
		"Cloud Hypervisor, a better CPU": {other, func(f *snapshot.Facts) {
			f.Features = []string{"avx", "avx2", "avx512f"}
		}, nil},
		"Cloud Hypervisor, another CPU": {other, func(f *snapshot.Facts) {
			f.Features = []string{"avx"}
		}, []string{"CPU feature avx2"}},
		"another kernel of the host": {other, func(f *snapshot.Facts) { f.Kernel = "6.18" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			is := tt.was
			tt.change(&is)
			majors := 0
			if tt.was.VMM == "cloud-hypervisor" {
				majors = 2
			}
			err := compatible(tt.was, is, majors)
			if len(tt.words) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %v, want FailedPrecondition", err)
			}
			for _, w := range tt.words {
				if err != nil && !strings.Contains(err.Error(), w) {
					t.Errorf("it does not say %q: %v", w, err)
				}
			}
		})
	}
}

// The device layout is a part of what must fit.
func TestLayout(t *testing.T) {
	s := func(disk, nic int) *spec.Spec {
		return &spec.Spec{Disks: []spec.Disk{{ID: "layer0", Slot: 8}, {ID: "rw", Slot: disk}},
			NICs: []spec.NIC{{ID: "net0", Slot: nic}}}
	}
	if err := layout(s(9, 4)); err != nil {
		t.Error(err)
	}
	for word, bad := range map[string]*spec.Spec{"disk rw in slot 3": s(3, 4), "NIC net0 in slot 9": s(9, 9)} {
		if err := layout(bad); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "device layout has "+word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// What a shim offers is compared where it would come to, before anything is touched: by the VMM
// that would run it, with all that Create refuses of its state.
func TestOfferFits(t *testing.T) {
	w := moving(t)
	o, err := w.offer()
	w.must("offer", err)
	if err := Fits(t.Context(), w.host(), o.GetSpec(), o.GetFacts()); err != nil {
		t.Errorf("its own node: %v", err)
	}
	change := func(data []byte, change func(map[string]any)) []byte {
		var all map[string]any
		w.must("read", json.Unmarshal(data, &all))
		change(all)
		out, err := json.Marshal(all)
		w.must("write", err)
		return out
	}
	facts := func(key string, value any) []byte {
		return change(o.GetFacts(), func(all map[string]any) { all[key] = value })
	}
	for name, c := range map[string]struct {
		spec, facts []byte
		word        string
		is          func(error) bool
	}{
		"another CPU":     {o.GetSpec(), facts("cpu", "other"), "CPU model", errdefs.IsFailedPrecondition},
		"a newer VMM":     {o.GetSpec(), facts("version", "999"), "older", errdefs.IsFailedPrecondition},
		"a CPU's feature": {o.GetSpec(), facts("features", []string{"avx9000"}), "avx9000", errdefs.IsFailedPrecondition},
		"another layout": {change(o.GetSpec(), func(all map[string]any) {
			all["disks"].([]any)[0].(map[string]any)["slot"] = 30
		}), o.GetFacts(),
			"slot 30", errdefs.IsFailedPrecondition},
		"a newer Spec": {change(o.GetSpec(), func(all map[string]any) {
			all["version"] = 99
		}), o.GetFacts(), "version 99", errdefs.IsNotImplemented},
		"garbage": {[]byte("{"), o.GetFacts(), "offered", errdefs.IsInvalidArgument},
	} {
		if err := Fits(t.Context(), w.host(), c.spec, c.facts); !c.is(err) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only a VM that runs is sent, to a named destination, after an offer of this attempt.
func TestSendIsRefused(t *testing.T) {
	busyBound = 0 // what is under way here stays so
	t.Cleanup(func() { busyBound = longestBusy })
	w := moving(t)
	m := w.machineService()
	whole := &machinev1.SendRequest{Ref: w.ref(), Address: "b:1", Channel: "c", Certificate: []byte("d")}
	if _, err := m.Send(t.Context(), whole); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) ||
		!strings.Contains(err.Error(), "Offer") {
		t.Errorf("without an offer: %v", err)
	}
	vm, _ := w.service.current()
	if !vm.inState(Running) {
		t.Fatalf("VM is %s", vm.state)
	}
	for _, s := range []State{Created, Starting, Paused, Stopped} {
		vm.mu.Lock()
		vm.state = s
		vm.mu.Unlock()
		if _, err := w.send(); !errdefs.IsFailedPrecondition(err) || !vm.inState(s) {
			t.Errorf("of a VM that is %s: %v, then %s", s, err, vm.state)
		}
	}
	vm.mu.Lock()
	vm.state, vm.op.offered = Running, nil
	vm.mu.Unlock()
	if _, err := m.Send(t.Context(), &machinev1.SendRequest{Ref: w.ref()}); !errdefs.IsInvalidArgument(
		errgrpc.ToNative(err)) {
		t.Errorf("without a destination: %v", err)
	}
	stale := w.ref()
	stale.Generation--
	if _, err := m.Offer(t.Context(), &machinev1.OfferRequest{Ref: stale}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) {
		t.Errorf("stale offer: %v", err)
	}
	w.exec("e")
	if o, err := w.offer(); err != nil || len(o.GetObstacles()) != 0 {
		t.Errorf("an exec is an obstacle: %v, %v", o, err)
	}
	if _, err := w.send(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "exec e") {
		t.Errorf("with an exec: %v", err)
	}
}
