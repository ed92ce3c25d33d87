//go:build integration

package badinput

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// With the records lost, a container whose VM sleeps is not booted fresh; with
// them back, it wakes.
func TestLostRecords(t *testing.T) {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	records := filepath.Join(n.Dir, "lib", "records.db")
	swap := func(from, to string) {
		t.Helper()
		if err := n.Godwitd.Stop(); err != nil {
			t.Fatal(err)
		}
		if out, err := n.Run(t.Context(), "mv", from, to); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := n.StartGodwitd(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n.Ctr(t, "run", "-d", "--runtime", runtimeName, images.Probe, "plain", "/bin/probe")
	n.Godwit(t, "hibernate", "plain")
	v, _ := look(t, n, "plain")
	swap(records, records+".aside")
	_, err := n.RunCtr(t.Context(), "task", "start", "-d", "plain")
	if err == nil || !strings.Contains(err.Error(), "older than it was") {
		t.Errorf("ctr task start with empty records: %v; want a refusal by what the controller has seen", err)
	}
	n.Godwit(t, "controller", "restore")
	err = harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		_, err := n.RunCtr(ctx, "task", "start", "-d", "plain")
		if err == nil || !strings.Contains(err.Error(), v.Owner.Digest) {
			return fmt.Errorf("ctr task start with empty records: %v; want a refusal that names %s", err, v.Owner.Digest)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if vmm, err := n.VMM(t.Context()); err == nil {
		t.Errorf("%s runs", vmm)
	}
	swap(records+".aside", records) // it is as old as a copy now
	n.Godwit(t, "controller", "restore")
	err = harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		_, err := n.RunCtr(ctx, "task", "start", "-d", "plain")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := look(t, n, "plain"); v.Owner.Node != "a" || v.Status != "running" {
		t.Errorf("the record says %+v", v)
	}
	n.Ctr(t, "task", "rm", "--force", "plain")
	n.Ctr(t, "container", "rm", "plain")
	n.Godwit(t, "rm", "plain")
}
