package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// at lists the VMs of a node: the one there is, or none.
func at(here bool) func() ([]*nodev1.VM, error) {
	return func() ([]*nodev1.VM, error) {
		if here {
			return []*nodev1.VM{vm}, nil
		}
		return nil, nil
	}
}

// leaves takes the VM from a node, as when its task was deleted while the records were out of reach.
func (w *world) leaves(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state[node] = gone
}

// TestReconcile shows that a VM is given up when nothing of it has been here for a while, and never
// by a list: neither by one that lacks it, nor by one that could not be read.
func TestReconcile(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Grace = 30 * time.Millisecond
	var unread error
	here := true
	list := func() ([]*nodev1.VM, error) { vms, _ := at(here)(); return vms, unread }
	stays := func(why string) {
		t.Helper()
		for end := time.Now().Add(3 * e.opts.Grace); time.Now().Before(end); time.Sleep(e.opts.Grace / 10) {
			if err := e.Reconcile(t.Context(), list); !errors.Is(err, unread) {
				t.Fatal(err)
			}
		}
		if w.record().GetOwner().GetNode() != "n1" {
			t.Fatal("given up: ", why)
		}
	}
	stays("a VM that is here")
	here = false
	stays("a VM that a list lacks, and whose shim answers")
	w.broke("Query", errdefs.ErrUnavailable)
	stays("a VM that a list lacks, and whose shim does not answer")
	w.broke("Query", nil)
	unread = syscall.EMFILE
	stays("a VM that runs, by a list that could not be read")
	w.leaves("n1")
	stays("a VM by a list that could not be read, though its shim is gone")
	unread = nil
	if err := e.Reconcile(t.Context(), list); err != nil || w.record().GetOwner().GetNode() != "n1" {
		t.Fatalf("given up at first sight: %v", err)
	}
	w.until("the VM is given up", func() bool {
		if err := e.Reconcile(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return w.record().GetOwner() == nil
	})
}

// TestGiveUp shows that a VM which is removed by force is given up at once if nothing of it is here, and never on less.
func TestGiveUp(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Grace = time.Hour
	give := func(what string, gone bool) {
		t.Helper()
		if err := e.GiveUp(t.Context(), w.record()); err != nil || gone != (w.record().GetOwner() == nil) {
			t.Fatalf("%s: %v, the record is %v", what, err, w.record())
		}
	}
	give("a VM that is here", false)
	w.broke("Query", errdefs.ErrUnavailable)
	give("a VM whose shim does not answer", false)
	w.broke("Query", nil)
	w.leaves("n1")
	w.broke("Disown", errdefs.ErrUnavailable)
	if err := e.GiveUp(t.Context(), w.record()); !errdefs.IsUnavailable(err) || w.record().GetOwner() == nil {
		t.Fatalf("records that do not answer: %v", err)
	}
	w.broke("Disown", nil)
	old := w.record()
	give("a VM of which nothing is here", true)
	if err := e.GiveUp(t.Context(), w.record()); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := e.GiveUp(t.Context(), old); err != nil && !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with an old record: %v", err)
	}
}

// TestReconcileOfAPart shows that what a list could not read costs the VMs that it has read nothing.
func TestReconcileOfAPart(t *testing.T) {
	w, driver, round := waking(t)
	driver.Close()
	w.over("w")
	list := func() ([]*nodev1.VM, error) { return []*nodev1.VM{vm}, syscall.EIO }
	if err := round.Reconcile(t.Context(), list); !errors.Is(err, syscall.EIO) || w.stateAt("n2") != gone {
		t.Errorf("%v; what is over is %q", err, w.stateAt("n2"))
	}
}

// hanging is a shim that answers at the end of its time, among others that answer at once.
type hanging struct {
	Observer
	id    string
	asked func(id string)
}

func (h hanging) Query(ctx context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error) {
	h.asked(vm.GetId())
	if vm.GetId() == h.id {
		time.Sleep(5 * time.Second)
	}
	return nil, errdefs.ErrUnavailable
}

// TestShimThatHangs shows that a shim which does not answer keeps no other VM of the round waiting.
func TestShimThatHangs(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		e := New(Parts{Records: w.records, Events: Sinks{}}, Options{Node: "n3"})
		defer e.Close()
		var vms []*nodev1.VM
		for i := range 2 * AtOnce {
			vms = append(vms, &nodev1.VM{Namespace: "default", Id: fmt.Sprint("vm", i)})
		}
		var mu sync.Mutex
		asked, begun := map[string]time.Duration{}, time.Now()
		e.Observer = hanging{id: "vm0", asked: func(id string) {
			mu.Lock()
			defer mu.Unlock()
			asked[id] = time.Since(begun)
		}}
		if err := e.Reconcile(t.Context(), func() ([]*nodev1.VM, error) { return vms, nil }); err != nil {
			t.Fatal(err)
		}
		for id, after := range asked {
			if after > 0 {
				t.Errorf("%s was asked after %v", id, after)
			}
		}
		if len(asked) != len(vms) {
			t.Errorf("%d of %d were asked", len(asked), len(vms))
		}
	})
}

// TestShimsOwnWake: no engine drives it; once its VM is missing it is settled.
func TestShimsOwnWake(t *testing.T) {
	w := asleep(t)
	e := w.start("n2")
	e.opts.Grace = 10 * time.Millisecond
	rec := w.record()
	_, err := w.records.Open(t.Context(),
		&nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: "own", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1,
			Destination: "n2", Generation: rec.Generation}})
	if err == nil {
		err = e.Resume(t.Context())
	}
	if err != nil || e.running("own") != nil {
		t.Fatalf("driven by the engine: %v", err)
	}
	w.until("the wake is settled", func() bool {
		if err := e.Reconcile(context.Background(), at(false)); err != nil {
			t.Fatal(err)
		}
		return w.record().GetOperation() == nil
	})
	w.check("own")
	if w.record().GetOwner().GetDigest() == "" {
		t.Fatal("the digest lost its VM")
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	e := w.start("n1")
	e.Events = Sinks{m}
	w.broke("Vote", errdefs.ErrInternal)
	_ = w.hibernate(e, "h0")
	w.settle("h0")
	w.broke("Vote", nil)
	_ = w.hibernate(e, "h1")
	w.settle("h1")
	_ = w.wake(e, "w1")
	w.settle("w1")
	e.Close()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			name := f.GetName()
			for _, label := range sample.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = sample.GetCounter().GetValue() + float64(sample.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{
		"godwit_hibernate_total ok": 1, "godwit_hibernate_total failed": 1, "godwit_hibernate_total aborted": 0,
		"godwit_hibernate_total lost": 0,
		"godwit_wake_total ok":        1, "godwit_wake_total failed": 0, "godwit_wake_total aborted": 0,
		"godwit_wake_total lost": 0,
		"godwit_pause_seconds":   1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
