//go:build integration

// Package cli asks the real daemons through the command line.
package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// finding is one line of doctor, as docs/reference/cli.md promises it.
type finding struct {
	Check, Detail, Remedy string
	OK, Fatal             bool
}

func doctor(t *testing.T, n *harness.Node, args ...string) (map[string]finding, error) {
	t.Helper()
	out, err := n.RunGodwit(t.Context(), append([]string{"-o", "json", "doctor"}, args...)...)
	var all []finding
	if e := json.Unmarshal([]byte(out), &all); e != nil {
		t.Fatalf("doctor: %v, printed %q: %v", err, out, e)
	}
	by := map[string]finding{}
	for _, f := range all {
		if (f.Remedy == "") != f.OK {
			t.Errorf("%s: ok %v, remedy %q", f.Check, f.OK, f.Remedy)
		}
		by[f.Check] = f
	}
	return by, err
}

// Doctor says which part of a node is missing, while the others are fine.
func TestDoctor(t *testing.T) {
	old := filepath.Join(t.TempDir(), "cloud-hypervisor")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho cloud-hypervisor v51.2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GODWIT_CLOUD_HYPERVISOR", old)
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true})
	n := h.Node(0)
	found, err := doctor(t, n)
	if err != nil {
		t.Errorf("doctor on a node that works: %v", err)
	}
	for _, name := range []string{"configuration", "guest kernel", "guest initramfs", "vmm qemu", "ram_dir", "tap devices",
		"cgroup", "godwitd", "controller", "containerd", "store"} {
		if f := found[name]; !f.OK || f.Detail == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if d := found["containerd"].Detail; !strings.Contains(d, "io.containerd.godwit.v1") {
		t.Errorf("containerd: %q does not name the runtime that it finds", d)
	}
	t.Run("demo", func(t *testing.T) { demoNotRun(t, h, found["vmm cloud-hypervisor"]) })
	if err := h.Unplug(); err != nil {
		t.Fatal(err)
	}
	broken(t, n, "store", harness.Repository)
	if err := h.Plug(); err != nil {
		t.Fatal(err)
	}
	if found, _ := doctor(t, n); !found["store"].OK {
		t.Errorf("store that is back: %+v", found["store"])
	}
}

// broken: the check fails with a word in its detail, which ends doctor only if it is strict.
func broken(t *testing.T, n *harness.Node, check, word string) {
	t.Helper()
	found, err := doctor(t, n)
	if err != nil {
		t.Errorf("doctor with a broken %s: %v", check, err)
	}
	if f := found[check]; f.OK || f.Fatal || !strings.Contains(f.Detail, word) {
		t.Errorf("%s: %+v", check, f)
	}
	var run *harness.RunError
	if _, err := doctor(t, n, "--strict"); !errors.As(err, &run) || !strings.Contains(run.Stderr, "FailedPrecondition") {
		t.Errorf("strict doctor with a broken %s: %v", check, err)
	}
}

// demoNotRun: the demo on a VMM that does not run here ends with 2, and with the reason
// that doctor has: without KVM for that, with it for the version.
func demoNotRun(t *testing.T, h *harness.Harness, want finding) {
	if want.OK || want.Detail == "" {
		t.Fatalf("doctor says of Cloud Hypervisor 51: %+v", want)
	}
	demo, err := h.Build(t.Context(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), demo, "-out", filepath.Join(t.TempDir(), "demo.json"))
	cmd.Env = append(os.Environ(), "GODWIT_VMM=cloud-hypervisor")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("the demo ended with %v, want exit code 2", err)
	}
	if !strings.Contains(string(out), want.Detail) {
		t.Errorf("the demo says %s, doctor %s", out, want.Detail)
	}
}
