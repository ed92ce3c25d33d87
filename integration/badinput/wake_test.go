//go:build integration

package badinput

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// zeroes is a digest that no snapshot has.
var zeroes = "sha256:" + strings.Repeat("0", 64)

// A wake that cannot be done leaves the VM asleep, to be woken from the good digest. Whatever is tried at once or out
// of turn, one VM runs.
func TestWakeRefused(t *testing.T) {
	s := newSite(t, 2)
	a, b := s.Node(0), s.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	g := s.run(t, a, "sleeper")
	good := g.hibernate(t, a)
	ok := t.Run("looked at", func(t *testing.T) { looked(t, g, good) }) &&
		t.Run("unknown digest", func(t *testing.T) { unknown(t, g, good) }) &&
		t.Run("damaged", func(t *testing.T) { damaged(t, g, good) }) &&
		t.Run("altered", func(t *testing.T) { altered(t, g, good) }) &&
		t.Run("misfit", func(t *testing.T) { misfit(t, g, good) }) &&
		t.Run("registry refuses", func(t *testing.T) { forbidden(t, g, good) }) &&
		t.Run("good digest", func(t *testing.T) { g.wake(t, b, "--digest", good) }) &&
		t.Run("awake already", func(t *testing.T) { awake(t, g) }) &&
		t.Run("ctr run of one that sleeps", func(t *testing.T) { runAsleep(t, g) }) &&
		t.Run("both nodes at once", func(t *testing.T) { race(t, g) })
	if !ok {
		return
	}
	g.remove(t, a)
	b.Ctr(t, "container", "rm", g.id)
	godwitFails(t, a, "wake", g.id).want(t, "NotFound", `no VM "sleeper" in namespace default`)
}

// looked: the verbs that look at a snapshot agree about the one that owns the VM.
func looked(t *testing.T, g *guest, good string) {
	b := g.Node(1)
	var list struct {
		Snapshots []struct {
			Digest, Repository string
			Owner              bool
		}
	}
	if err := json.Unmarshal([]byte(b.Godwit(t, "-o", "json", "snapshot", "ls", g.id)), &list); err != nil ||
		len(list.Snapshots) != 1 ||
		list.Snapshots[0].Digest != good || !list.Snapshots[0].Owner {
		t.Errorf("snapshot ls: %v: %+v", err, list)
	}
	if table := b.Godwit(t, "snapshot", "ls", "-o", "wide"); !strings.Contains(table, good) ||
		!strings.Contains(table, "owner") {
		t.Errorf("snapshot ls of all VMs: %s", table)
	}
	var found struct {
		Manifest v1.Manifest
		Config   struct{ Spec struct{ ID string } }
	}
	if err := json.Unmarshal([]byte(b.Godwit(t, "snapshot", "inspect", good)), &found); err != nil ||
		found.Config.Spec.ID != g.id ||
		len(found.Manifest.Layers) != len(g.manifest(t, good).Layers) {
		t.Errorf("snapshot inspect: %v: %+v", err, found)
	}
	godwitFails(t, b, "snapshot", "inspect", zeroes).want(t, "NotFound", zeroes)
}

// unknown: a digest that is not the VM's, and one that no VM has.
func unknown(t *testing.T, g *guest, good string) {
	b := g.Node(1)
	godwitFails(t, b, "wake", "--digest", zeroes, g.id).want(t, "FailedPrecondition", g.id, zeroes, good)
	godwitFails(t, b, "wake", "--digest", "g1:latest", g.id).want(t, "InvalidArgument", "--digest", "g1:latest", "sha256:")
	godwitFails(t, b, "wake", "--from", "no-such-name", g.id).want(t, "NotFound", "no-such-name", "godwit snapshot ls")
	godwitFails(t, b, "wake", "--force", "--digest", zeroes, g.id).want(t, "NotFound", g.id, zeroes, harness.Repository)
	godwitFails(t, b, "wake", "--force", g.id).want(t, "InvalidArgument", "digest")
	g.sleepsStill(t, good)
}

// forbidden: the registry lets no client in.
func forbidden(t *testing.T, g *guest, good string) {
	b := g.Node(1)
	g.Door.SetFault(func(int, *http.Request) harness.Fault { return harness.Fault{Status: 403} })
	defer g.Door.SetFault(nil)
	godwitFails(t, b, "wake", g.id).want(t, "PermissionDenied", g.id, "403", harness.RegistryHost)
	g.sleepsStill(t, good)
}

// awake: the VM runs on b. No second node gets it.
func awake(t *testing.T, g *guest) {
	a, b := g.Node(0), g.Node(1)
	godwitFails(t, a, "wake", g.id).want(t, "FailedPrecondition", g.id, "node b")
	godwitFails(t, b, "wake", g.id).want(t, "FailedPrecondition", g.id, "this node, b")
	godwitFails(t, a, "hibernate", g.id).want(t, "FailedPrecondition", g.id, "node b")
	godwitFails(t, a, "rm", "--force", g.id).want(t, "FailedPrecondition", g.id, "node b")
	ctrFails(t, a, "task", "start", g.id).want(t, "FailedPrecondition", g.id, "node b")
	a.Ctr(t, "container", "rm", g.id)
	args := g.runArgs()
	args[1] = "--rm" // for -d: the container goes when it fails
	ctrFails(t, a, args...).want(t, "FailedPrecondition", g.id, "node b")
	g.runsOn(t, b)
}

// runAsleep: ctr run of a name whose newest state sleeps restores that state, and says so.
func runAsleep(t *testing.T, g *guest) {
	a, b := g.Node(0), g.Node(1)
	digest := g.hibernate(t, b)
	g.watch.Mark("run")
	a.Ctr(t, g.runArgs()...)
	g.heard(t, "run")
	g.runsOn(t, a)
	log, err := os.ReadFile(filepath.Join(g.Dir, "log", "a-containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "a snapshot owns the VM") || !strings.Contains(string(log), digest) {
		t.Error("the log of the node does not say that the VM was restored instead of booted")
	}
	g.hibernate(t, a)
	// Its network was ctr's to make: without one the VM is not let into the void.
	ctrFails(t, a, "task", "start", "-d", g.id).want(t, "FailedPrecondition", g.id, "interface", "godwit wake")
	a.Ctr(t, "task", "rm", "--force", g.id)
	g.sleeps(t)
}

// race: wake on both nodes at once, five times: exactly one runs (I1), the other one
// learns who.
func race(t *testing.T, g *guest) {
	for i := range 5 {
		type answer struct {
			out string
			err error
		}
		answers := make([]chan answer, len(g.Nodes()))
		g.watch.Mark("race")
		for i, n := range g.Nodes() {
			answers[i] = make(chan answer, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
				defer cancel()
				out, err := n.RunGodwit(ctx, "-o", "json", "wake", "--on", n.Name, g.id)
				answers[i] <- answer{out, err}
			}()
		}
		var winner *harness.Node
		var lost refusal
		for i, n := range g.Nodes() {
			if a := <-answers[i]; a.err != nil {
				lost = cliRefusal(t, a.out, a.err)
			} else if winner != nil {
				t.Fatal("both nodes woke it")
			} else {
				winner = n
			}
		}
		if winner == nil {
			t.Fatalf("round %d: neither node woke it: %+v", i, lost)
		}
		lost.want(t, "FailedPrecondition", g.id, "ode "+winner.Name) // Node b wakes it, or: it runs on node b
		g.heard(t, "race")
		g.runsOn(t, winner)
		for _, n := range g.Nodes() {
			if vmm, err := n.VMM(t.Context()); n != winner && err == nil {
				t.Fatalf("round %d: %s won, and on %s runs %s", i, winner.Name, n.Name, vmm)
			}
		}
		if i < 4 || winner != g.Node(0) {
			g.hibernate(t, winner)
		}
	}
	if v, _ := look(t, g.Node(0), g.id); v.Owner.Node == "" {
		g.wake(t, g.Node(0))
	}
}

// sleepsStill checks that the failed wakes have changed nothing and left nothing.
func (g *guest) sleepsStill(t *testing.T, good string) {
	t.Helper()
	if digest := g.sleeps(t); digest != good {
		t.Fatalf("the VM is %s now, it was %s", digest, good)
	}
	for _, n := range g.Nodes() {
		if vmm, err := n.VMM(t.Context()); err == nil {
			t.Errorf("%s runs on node %s", vmm, n.Name)
		}
	}
}

// ctr task start of a container whose VM sleeps wakes the VM. It does so on the node that has put it to sleep, although
// its registry is away. So does godwit wake. What is damaged in the node's cache is fetched, and godwit rm leaves
// nothing there.
func TestTaskStartOfSleeper(t *testing.T) {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	asked := 0
	ask := func() (s images.ProbeState) {
		t.Helper()
		asked++
		id := fmt.Sprintf("ask%d", asked)
		out := n.Ctr(t, "task", "exec", "--exec-id", id, "plain", "sh", "-c",
			"until wget -qO- http://127.0.0.1:8080; do sleep 0.1; done")
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return s
	}
	n.Ctr(t, "run", "-d", "--runtime", runtimeName, images.Probe, "plain", "/bin/probe")
	before := ask()
	same := func(how string) {
		t.Helper()
		after := ask()
		if after.Nonce != before.Nonce || after.BootID != before.BootID || after.PID != before.PID ||
			after.Counter <= before.Counter || !after.FileOK {
			t.Errorf("%s made another one: %+v, it was %+v", how, after, before)
		}
		before.Counter = after.Counter
	}
	n.Godwit(t, "hibernate", "plain")
	withoutRegistry(t, h, func() { n.Ctr(t, "task", "start", "-d", "plain") })
	same("ctr task start")
	if v, _ := look(t, n, "plain"); v.Owner.Node != "a" || v.Status != "running" || v.Op != nil {
		t.Errorf("the record says %+v", v)
	}
	n.Godwit(t, "hibernate", "plain")
	withoutRegistry(t, h, func() { n.Godwit(t, "wake", "plain") })
	same("a wake without the registry")
	n.Godwit(t, "hibernate", "plain")
	bad := damage(t, n)
	h.Door.Take()
	n.Godwit(t, "wake", "plain")
	if asked := reads(h.Door.Take()); len(asked) != 1 || !strings.HasSuffix(asked[0], bad) {
		t.Errorf("with a damaged %s the registry was asked for %q", bad, asked)
	}
	same("a wake with a damaged pack")
	if u := cacheUsage(t, n); u.Damaged != 1 || u.Hits < 10 || u.HitBytes == 0 || u.KeptBytes == 0 {
		t.Errorf("what the cache was good for: %+v", u)
	}
	n.Ctr(t, "task", "rm", "--force", "plain")
	n.Ctr(t, "container", "rm", "plain")
	n.Godwit(t, "rm", "plain")
	if left := kept(t, n); len(left) > 0 {
		t.Errorf("the node keeps %d objects of a VM that is gone", len(left))
	}
}
