package placement

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

// What the shim's binary says of VMs here is told. Of one that does not know the question there is an error.
func TestClasses(t *testing.T) {
	shim := filepath.Join(t.TempDir(), "shim")
	ask := func(script string) ([]string, []string, error) {
		if err := os.WriteFile(shim, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		return Classes(t.Context(), shim, "/etc/c.toml")
	}
	cpus, vmms, err := ask(`[ "$*" = "fit -classes -config /etc/c.toml" ] || exit 1
		echo '{"cpus": ["kvm/host"], "vmms": ["q/1"]}'`)
	if err != nil || !slices.Equal(cpus, []string{"kvm/host"}) || !slices.Equal(vmms, []string{"q/1"}) {
		t.Errorf("it says %q, %q, %v", cpus, vmms, err)
	}
	if cpus, vmms, err := ask("echo no such flag >&2; exit 1"); err == nil || cpus != nil || vmms != nil {
		t.Errorf("a build before says %q, %q, %v", cpus, vmms, err)
	}
}

// What the shim's binary says of an offer is the answer; without one there is an error, with its
// words, and never a yes.
func TestFits(t *testing.T) {
	dir := t.TempDir()
	offer := &machinev1.OfferResponse{Spec: []byte(`{"version":1}`), Facts: []byte(`{"vmm":"qemu"}`)}
	ask := func(ctx context.Context, script string) (string, error) {
		program := filepath.Join(dir, "shim")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		return Fits(ctx, program, "/etc/c.toml", offer)
	}
	said := filepath.Join(dir, "said")
	no, err := ask(t.Context(), `{ echo "$@"; cat; } >`+said+`; echo '{"obstacle": "its CPU"}'`)
	if err != nil || no != "its CPU" {
		t.Errorf("it says %q, %v", no, err)
	}
	if got, _ := os.ReadFile(said); string(got) != "fit -config /etc/c.toml\n"+
		`{"facts":{"vmm":"qemu"},"spec":{"version":1}}` {
		t.Errorf("it was told %q", got)
	}
	if no, err := ask(t.Context(), "cat >/dev/null; echo '{}'"); no != "" || err != nil {
		t.Errorf("nothing is in the way: %q, %v", no, err)
	}
	for script, word := range map[string]string{"echo no such role >&2; exit 1": "no such role",
		"cat >/dev/null; echo what": "invalid", "cat >/dev/null": "JSON"} {
		if no, err := ask(t.Context(), script); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %q, %v", script, no, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if no, err := ask(ended, "echo '{}'"); err == nil {
		t.Errorf("not asked: %q", no)
	}
	if no, err := Fits(t.Context(), "/not/there", "", &machinev1.OfferResponse{}); no != "" || err != nil {
		t.Errorf("a source that says nothing: %q, %v", no, err)
	}
	offer.Facts = []byte("{")
	if no, err := ask(t.Context(), "echo '{}'"); err == nil {
		t.Errorf("no JSON: %q", no)
	}
}
