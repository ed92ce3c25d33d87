//go:build integration

// Package badinput tests that bad input ends well: the user sees an error of a class that
// names what is wrong and what to do, and no VM is lost by it.
package badinput

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	beaconPort  = "9999"
	// quiet is how long a VM that sleeps must not be heard.
	quiet = 500 * time.Millisecond
)

// stepTimeout bounds one boot, wake or hibernate on a machine without KVM.
var stepTimeout = harness.Slow(time.Minute)

// site is a harness and who listens to its guests.
type site struct {
	*harness.Harness
	watch *observer.Watcher
}

// uncached: what was damaged in the registry is what a wake reads.
func uncached(*harness.Node) string { return "cache.packs = 0\n" }

func newSite(t *testing.T, nodes int) *site {
	t.Helper()
	h := harness.New(t, harness.Options{Nodes: nodes, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: uncached})
	conn, err := h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &site{Harness: h, watch: observer.Watch(conn)}
}

// refusal is an error as the user sees it.
type refusal struct {
	Class, Message string
}

// want checks class and words of a refusal.
func (r refusal) want(t *testing.T, class string, words ...string) {
	t.Helper()
	if r.Class != class {
		t.Errorf("class %s, want %s: %s", r.Class, class, r.Message)
	}
	for _, w := range words {
		if !strings.Contains(r.Message, w) {
			t.Errorf("the error does not say %q: %s", w, r.Message)
		}
	}
	t.Logf("%s: %s", r.Class, r.Message)
}

// godwitFails runs the CLI and answers its error.
func godwitFails(t *testing.T, n *harness.Node, args ...string) refusal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	out, err := n.RunGodwit(ctx, append([]string{"-o", "json"}, args...)...)
	return cliRefusal(t, out, err)
}

func cliRefusal(t *testing.T, out string, err error) refusal {
	t.Helper()
	var run *harness.RunError
	if !errors.As(err, &run) {
		t.Errorf("no error of the command, but %v: %s", err, out)
		return refusal{}
	}
	var shape struct{ Error refusal }
	if err := json.Unmarshal([]byte(run.Stderr), &shape); err != nil {
		t.Errorf("the error is no JSON document: %v: %s", err, run.Stderr)
	}
	return shape.Error
}

// ctrClasses are the words at the end of an error of ctr, which has no other class.
var ctrClasses = map[string]string{
	"invalid argument": "InvalidArgument", "not implemented": "NotImplemented",
	"failed precondition": "FailedPrecondition",
	"resource exhausted":  "ResourceExhausted", "unavailable": "Unavailable", "not found": "NotFound",
	"data loss": "DataLoss",
}

// ctrFails runs ctr and answers its error.
func ctrFails(t *testing.T, n *harness.Node, args ...string) refusal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	out, err := n.RunCtr(ctx, args...)
	var run *harness.RunError
	if !errors.As(err, &run) {
		t.Errorf("no error of ctr %s, but %v: %s", strings.Join(args, " "), err, out)
		return refusal{}
	}
	text := strings.TrimSpace(run.Stderr)
	for words, class := range ctrClasses {
		if strings.HasSuffix(text, ": "+words) {
			return refusal{class, text}
		}
	}
	return refusal{"Unknown", text}
}

// vm is what `godwit ps` says of one.
type vm struct {
	Status string
	Owner  struct{ Node, Digest string }
	UID    string `json:"uid"`
	Op     any    `json:"operation"`
}

// look answers what a node says of a VM; ok is false if it knows none of that name.
func look(t *testing.T, n *harness.Node, id string) (v vm, ok bool) {
	t.Helper()
	var all struct {
		VMs []struct {
			VM struct{ ID string } `json:"vm"`
			vm
		} `json:"vms"`
	}
	if err := json.Unmarshal([]byte(n.Godwit(t, "ps", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, i := range all.VMs {
		if i.VM.ID == id {
			return i.vm, true
		}
	}
	return vm{}, false
}

// guest is a probe in a VM with a network.
type guest struct {
	*site
	id      string
	address string
	born    images.ProbeState
}

// run starts a VM on a node as a user of containerd does.
func (s *site) run(t *testing.T, n *harness.Node, id string) *guest {
	t.Helper()
	g := &guest{site: s, id: id}
	s.watch.Mark("boot")
	n.Ctr(t, g.runArgs()...)
	sign := g.heard(t, "boot")
	g.address, g.born = sign.From, g.ask(t, sign.From)
	return g
}

func (g *guest) runArgs() []string {
	return []string{"run", "-d", "--cni", "--runtime", runtimeName, images.Probe, g.id,
		"/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beaconPort)}
}

func (g *guest) heard(t *testing.T, mark string) observer.Sighting {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	sign, err := g.watch.After(ctx, mark)
	if err != nil {
		t.Fatal(err)
	}
	return sign
}

func (g *guest) ask(t *testing.T, address string) images.ProbeState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	state, err := observer.Ask(ctx, g.Dial, address)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// runsOn checks that the very VM runs, that it never ran twice, and that the record says
// where and has nothing open.
func (g *guest) runsOn(t *testing.T, n *harness.Node) {
	t.Helper()
	last := g.watch.Latest()
	g.watch.Mark("now")
	sign := g.heard(t, "now")
	state := g.ask(t, sign.From)
	if sign.Nonce != g.born.Nonce || state.Nonce != g.born.Nonce || state.PID != g.born.PID ||
		state.BootID != g.born.BootID {
		t.Fatalf("another process answers: %+v, it was %+v", state, g.born)
	}
	if sign.Counter <= last.Counter || !state.FileOK {
		t.Errorf("counter went from %d to %d, file whole %t (%s)", last.Counter, sign.Counter, state.FileOK, state.FileError)
	}
	if doubles, back := g.watch.Twice(); doubles+back > 0 {
		t.Fatalf("the VM was seen twice: %d beacons doubled, %d out of order", doubles, back)
	}
	if v, _ := look(t, n, g.id); v.Owner.Node != n.Name || v.Status != "running" || v.Op != nil {
		t.Errorf("on node %s the record says %+v, want running there and nothing open", n.Name, v)
	}
}

// sleeps checks that the VM is not heard, that the record says which digest it is, and answers that.
func (g *guest) sleeps(t *testing.T) string {
	t.Helper()
	last := g.watch.Latest()
	if err := observer.Pause(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	if again := g.watch.Latest(); again.Counter != last.Counter {
		t.Fatalf("the VM was heard while it slept: counter %d, then %d", last.Counter, again.Counter)
	}
	v, _ := look(t, g.Node(0), g.id)
	if v.Status != "hibernated" || v.Owner.Digest == "" || v.Op != nil {
		t.Fatalf("the record says %+v, want asleep and nothing open", v)
	}
	return v.Owner.Digest
}

// hibernate puts it to sleep and answers the digest.
func (g *guest) hibernate(t *testing.T, n *harness.Node, args ...string) string {
	t.Helper()
	n.Godwit(t, append([]string{"hibernate", g.id}, args...)...)
	return g.sleeps(t)
}

// wake wakes it on a node.
func (g *guest) wake(t *testing.T, n *harness.Node, args ...string) {
	t.Helper()
	g.watch.Mark("wake")
	n.Godwit(t, append([]string{"wake", "--on", n.Name, g.id}, args...)...)
	g.heard(t, "wake")
	g.runsOn(t, n)
}

// remove ends it.
func (g *guest) remove(t *testing.T, n *harness.Node) {
	t.Helper()
	n.Ctr(t, "task", "rm", "--force", g.id)
	n.Ctr(t, "container", "rm", g.id)
	n.Godwit(t, "rm", g.id)
}
