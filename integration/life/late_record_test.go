//go:build integration

package life

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// A VM that was started by ctr on a host where godwitd never ran has no record. godwitd is started under the default
// configuration. The VM is checkpointed, sleeps in the node's own store and wakes with the kernel that booted.
func TestVMWithoutARecordSleeps(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.Ctr(t, "run", "-d", "--runtime", runtimeName, images.Busybox, "early", "sleep", "100000")
	n.Ctr(t, "run", "-d", "--runtime", runtimeName, images.Busybox, "ended", "sleep", "100000")
	boot := func(exec string) string {
		return n.Ctr(t, "task", "exec", "--exec-id", exec, "early", "cat", "/proc/sys/kernel/random/boot_id")
	}
	before := boot("before")
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := n.Godwit(t, "ps"); !strings.Contains(out, "early") {
		t.Errorf("godwit ps does not show it:\n%s", out)
	}
	n.Godwit(t, "checkpoint", "early")
	n.Godwit(t, "hibernate", "early")
	if out := n.Godwit(t, "doctor", "-v"); !strings.Contains(out, "of this node alone") {
		t.Errorf("godwit doctor does not say whose store it is:\n%s", out)
	}
	n.Godwit(t, "wake", "early")
	if after := boot("after"); after != before || len(before) < 36 {
		t.Errorf("boot id %q before, %q after the wake", before, after)
	}
	// Its name is free for Create only by its record from now on, also while godwitd is away.
	n.Godwit(t, "hibernate", "early")
	if err := n.Godwitd.Stop(); err != nil {
		t.Fatal(err)
	}
	n.Ctr(t, "container", "delete", "early")
	out, err := n.RunCtr(t.Context(), "run", "-d", "--runtime", runtimeName, images.Busybox, "early", "true")
	if err == nil || !strings.Contains(err.Error(), "godwitd") {
		t.Errorf("a VM that sleeps is booted anew: %s, %v", out, err)
	}
	_, _ = n.RunCtr(t.Context(), "container", "delete", "early")
	if err := n.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Godwit(t, "rm", "--force", "early")
	n.Ctr(t, "task", "delete", "--force", "ended") // what never had a record gives none back
	n.Ctr(t, "container", "delete", "ended")
	if out := n.Godwit(t, "ps"); strings.Contains(out, "ended") {
		t.Errorf("a VM that had no record has one after its end:\n%s", out)
	}
	if vmms, err := n.VMMs(); err != nil || len(vmms) > 0 {
		t.Errorf("VMMs are left: %v, %v", vmms, err)
	}
}
