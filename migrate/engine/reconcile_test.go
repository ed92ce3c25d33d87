package engine

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

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

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	e := w.start("n1")
	e.opts.Grace = 30 * time.Millisecond
	here := true
	reconcile := func() *nodev1.Record {
		t.Helper()
		if err := e.Reconcile(t.Context(), at(here)); err != nil {
			t.Fatal(err)
		}
		return w.record()
	}
	if rec := reconcile(); rec.GetOwner().GetNode() != "n1" {
		t.Fatal("gave up a VM that is here")
	}
	here = false
	if rec := reconcile(); rec.GetOwner().GetNode() != "n1" {
		t.Fatal("gave up a VM at first sight")
	}
	w.until("the VM is given up", func() bool { return reconcile().GetOwner() == nil })
}

// TestShimsOwnWake: no engine drives it; once its VM is missing it is settled.
func TestShimsOwnWake(t *testing.T) {
	w := asleep(t)
	e := w.start("n2")
	e.opts.Grace = 10 * time.Millisecond
	rec := w.record()
	_, err := w.records.Open(t.Context(), &nodev1.OpenRequest{Vm: vm, Operation: &nodev1.Operation{Id: "own", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "n2", Generation: rec.Generation}})
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
		"godwit_hibernate_total ok": 1, "godwit_hibernate_total failed": 1, "godwit_hibernate_total aborted": 0, "godwit_hibernate_total lost": 0,
		"godwit_wake_total ok": 1, "godwit_wake_total failed": 0, "godwit_wake_total aborted": 0, "godwit_wake_total lost": 0,
		"godwit_pause_seconds": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
