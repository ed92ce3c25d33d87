package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// Godwitd has every right on the node, so that it leaves what lies in a registry to a
// worker: that one's answer is all that it knows of manifest, config and index.
func TestWorkerReadsSnapshots(t *testing.T) {
	s := storetest.Start(t, &storetest.Registry{})
	r := ofNode(t, s)
	repository, d, _ := held(t, r, "op")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), program.Name)
	says := func(answer string) {
		t.Helper()
		if err := os.WriteFile(beside, []byte("#!/bin/sh\nread -r job\necho '"+answer+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Remove(beside) })

	says(`{"opened":{"config":{"spec":{"id":"of the worker"}}}}`)
	s.Take()
	spec, err := r.Spec(t.Context(), repository, d)
	if err != nil || spec.ID != "of the worker" {
		t.Fatalf("%+v, %v", spec, err)
	}
	if n := len(s.Take()); n != 0 {
		t.Errorf("%d requests of its own", n)
	}
	manifest, config, err := r.Inspect(t.Context(), repository, d)
	if err != nil || len(manifest) == 0 || len(config) == 0 {
		t.Errorf("%s, %s, %v", manifest, config, err)
	}
	says(`{"opened":{"config":{"spec":{"id":"web","memory":4096},"facts":{"vmm":"qemu"}},"pages":5000,"ram":3000}}`)
	offer, err := r.Offer(t.Context(), repository, d)
	if err != nil || offer.GetRamBytes() != 4096 || offer.GetDiskBytes() != 2000 ||
		!strings.Contains(string(offer.GetSpec()), `"web"`) || !strings.Contains(string(offer.GetFacts()), `"qemu"`) {
		t.Errorf("offer %v, %v", offer, err)
	}
	says(`{"error":{"class":"data loss","text":"read again"}}`)
	if spec, err := r.Spec(t.Context(), repository, d); err != nil || spec.ID != "web" {
		t.Errorf("what was offered a moment ago: %+v, %v", spec, err)
	}
	if _, err := r.Spec(t.Context(), repository, d); !errdefs.IsDataLoss(err) {
		t.Errorf("what was offered is used twice: %v", err)
	}
	says(`{"opened":{"config":{}}}`)
	if _, err := r.Offer(t.Context(), repository, d); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an offer of no VM: %v", err)
	}
	says(`{"error":{"class":"data loss","text":"a bad index"}}`)
	if _, err := r.Offer(t.Context(), repository, d); !errdefs.IsDataLoss(err) {
		t.Errorf("offer: %v", err)
	}
	if _, err := r.Spec(t.Context(), repository, d); !errdefs.IsDataLoss(err) {
		t.Errorf("spec: %v", err)
	}
	if _, _, err := r.Inspect(t.Context(), repository, d); !errdefs.IsDataLoss(err) {
		t.Errorf("inspect: %v", err)
	}
}
