//go:build integration

// Package golden puts VMs to sleep against a golden snapshot of their image, and counts bytes.
package golden

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	vm        = "second"
	runtime   = "io.containerd.godwit.v1"
	beacons   = "9997"
	perSecond = 20 // pages of random bytes that the workload writes
	page      = 4096
)

var bound = harness.Slow(2 * time.Minute)

// between is how long the workload runs between two sleeps.
func between(t *testing.T) time.Duration {
	text := os.Getenv("GODWIT_CHURN")
	if text == "" {
		return 30 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

type figures struct {
	Resident uint64 `json:"residentBytes"`
	Pushed   uint64 `json:"pushedBytes"`
}

func hibernate(t *testing.T, n *harness.Node) figures {
	t.Helper()
	var own struct{ Figures figures }
	if err := json.Unmarshal([]byte(n.Godwit(t, "hibernate", "-o", "json", vm)), &own); err != nil {
		t.Fatal(err)
	}
	return own.Figures
}

func after(t *testing.T, w *observer.Watcher, mark string) observer.Sighting {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	sign, err := w.After(ctx, mark)
	if err != nil {
		t.Fatalf("no sign of the VM after %q: %v", mark, err)
	}
	return sign
}

// durable is what shims said of their snapshots.
func durable(h *harness.Harness, n *harness.Node) string {
	var lines []string
	files, _ := filepath.Glob(filepath.Join(h.Dir, "log", "*"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, "snapshot is durable") || strings.Contains(line, "golden snapshot") {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "")
}

func percent(a, b uint64) float64 { return 100 * float64(a) / float64(b) }

// A golden snapshot made on one node serves the first sleep of a VM on another. It may be
// deleted then, and the second sleep sends only what is new.
func TestGolden(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true, Log: t.Logf})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	tar := filepath.Join(h.Dir, "probe.tar")
	a.Ctr(t, "images", "export", "--local", tar, images.Probe)
	if err := b.Import(t.Context(), tar, ""); err != nil {
		t.Fatal(err)
	}
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beacons))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch := observer.Watch(conn)

	// One that ends before it is ready leaves nothing, and says so.
	if out, err := a.RunGodwit(t.Context(), "template", "make", "--image", "--ready", "test -s /tmp/journal",
		images.Busybox, "sh", "-c", "sleep 2; exit 3"); err == nil {
		t.Errorf("a VM that was never ready was captured: %s", out)
	} else if !strings.Contains(err.Error(), "ended with status 3 before it was ready") {
		t.Errorf("of a VM that ends before it is ready: %v", err)
	}
	var made struct {
		Template struct{ Name string }
		Resident uint64 `json:"residentBytes"`
		Pushed   uint64 `json:"pushedBytes"`
	}
	// The journal has its first lines a second after the program's start.
	if err := json.Unmarshal([]byte(a.Godwit(t, "template", "make", "--image", "-o", "json", "--ready",
		"test -s /tmp/journal", images.Probe,
		"-interval", "100ms", "-file", "/tmp/journal")), &made); err != nil {
		t.Fatal(err)
	}
	digest := made.Template.Name
	t.Logf("golden snapshot: %d MiB resident, %d KiB stored", made.Resident>>20, made.Pushed>>10)
	for _, verb := range []string{"template ls", "template ls --image", "golden ls"} { // the last is of the release before
		if list := a.Godwit(t, append(strings.Fields(verb), "-o", "wide")...); !strings.Contains(list, digest) ||
			!strings.Contains(list, images.Probe) {
			t.Errorf("%s:\n%s", verb, list)
		}
	}
	elsewhere := filepath.Join(h.Dir, "elsewhere")
	t.Logf("\n%s%s", a.Godwit(t, "template", "ls"), a.Godwit(t, "template", "push", "--image", images.Probe,
		"oci-layout:"+elsewhere))
	if index, err := os.ReadFile(filepath.Join(elsewhere, "golden", "index.json")); err != nil ||
		!strings.Contains(string(index), digest) {
		t.Errorf("what was pushed: %s, %v", index, err)
	}
	if left := a.Ctr(t, "containers", "ls", "-q") + a.Godwit(t, "ps", "-a", "-A"); strings.Contains(left, "template-") {
		t.Errorf("the VM of the golden snapshot is still known:\n%s", left)
	}
	// Nothing wakes from it, whatever is ordered.
	if out, err := a.RunGodwit(t.Context(), "wake", "--on", a.Name, "--digest", digest, "--force", vm); err == nil {
		t.Errorf("a VM was woken from a golden snapshot:\n%s", out)
	}

	watch.Mark("boot")
	b.Ctr(t, "run", "-d", "--cni", "--runtime", runtime, images.Probe, vm,
		"/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beacons), "-churn", "20")
	after(t, watch, "boot")
	first := hibernate(t, b)
	t.Log(durable(h, b))
	t.Logf("first sleep: %d KiB sent, %.1f %% of the %d MiB resident, %.1f %% of what the golden snapshot took",
		first.Pushed>>10,
		percent(first.Pushed, first.Resident), first.Resident>>20, percent(first.Pushed, made.Pushed))
	if first.Pushed*2 > made.Pushed {
		t.Errorf("the first sleep sent %d bytes, the golden snapshot of the same image has %d", first.Pushed, made.Pushed)
	}
	t.Logf("\n%s", b.Godwit(t, "template", "rm", images.Probe))
	if list := b.Godwit(t, "template", "ls", "--image", "-o", "wide"); strings.Contains(list, digest) {
		t.Errorf("template ls after template rm:\n%s", list)
	}

	watch.Mark("wake")
	begun := time.Now()
	a.Godwit(t, "wake", "--on", a.Name, vm)
	woken := after(t, watch, "wake")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	before, err := observer.Ask(ctx, h.Dial, woken.From)
	if err != nil {
		t.Fatal(err)
	}
	if err := observer.Pause(ctx, between(t)); err != nil {
		t.Fatal(err)
	}
	now, err := observer.Ask(ctx, h.Dial, woken.From)
	if err != nil || now.Nonce != before.Nonce || !now.FileOK {
		t.Fatalf("the VM is another one: %+v, was %+v, %v", now, before, err)
	}
	second := hibernate(t, a)
	fresh := uint64(perSecond*time.Since(begun).Seconds()) * page // all that it can have written since the wake
	most := second.Resident/100 + fresh*12/10
	const kernel = 1 << 20 // what a guest's kernel writes at a wake differs by as much, whatever the VM's size
	t.Logf("second sleep after %v: %d KiB sent; 1 %% of %d MiB and 1.2 x %d KiB are %d KiB", between(t), second.Pushed>>10,
		second.Resident>>20, fresh>>10, most>>10)
	if now.Pages == before.Pages || second.Pushed > most+kernel {
		t.Errorf("the second sleep sent %d bytes, %d at most; %d pages were written", second.Pushed, most,
			now.Pages-before.Pages)
	}
	for _, n := range []*harness.Node{a, b} {
		if list, err := n.RunCtr(t.Context(), "container", "rm", vm); err != nil {
			t.Error(list, err)
		}
	}
	a.Godwit(t, "rm", vm, "--force")
}
