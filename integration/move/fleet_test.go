//go:build integration

package move

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/api/trace/otlp/otlptest"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// listed is a move as godwit -o json migrations tells it.
type listed struct {
	Waiting   string
	Operation struct {
		ID, Phase, Source, Destination, Reason string

		VM      struct{ ID string }
		Started time.Time `json:"startedTime"`
		Closed  time.Time `json:"closedTime"`
	}
}

func migrations(t *testing.T, n *harness.Node, args ...string) map[string]listed {
	t.Helper()
	var all struct{ Moves []listed }
	out := n.Godwit(t, append([]string{"-o", "json", "migrations"}, args...)...)
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	byVM := map[string]listed{}
	for _, m := range all.Moves {
		byVM[m.Operation.VM.ID] = m
	}
	return byVM
}

// queued is what the moves of one moment wait for; empty: they are under way.
func queued(all map[string]listed) map[string]string {
	why := map[string]string{}
	for id, m := range all {
		if m.Operation.Phase == "pending" {
			why[id] = cmp.Or(m.Waiting, "its turn")
		} else {
			why[id] = ""
		}
	}
	return why
}

// atOnce is how many moves were under way at the same time at most, of those that ok picks.
func atOnce(t *testing.T, all map[string]listed, ok func(listed) bool) (most int) {
	t.Helper()
	type edge struct {
		at int64
		by int
	}
	var edges []edge
	for id, m := range all {
		from, to := m.Operation.Started.UnixNano(), m.Operation.Closed.UnixNano()
		if m.Operation.Started.IsZero() || m.Operation.Closed.IsZero() || m.Operation.Phase != "succeeded" {
			t.Fatalf("move of %s: %+v", id, m)
		}
		if ok(m) {
			edges = append(edges, edge{from, 1}, edge{to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	now := 0
	for _, e := range edges {
		now += e.by
		most = max(most, now)
	}
	return most
}

// A node is drained: its VMs leave two at a time, two at a time come to the node that takes them, what waits says
// for what. Nothing comes to it while it is cordoned, by a move or by name. Then the node that has them is cut off
// with all that runs on it. One of them goes on elsewhere from its newest checkpoint, by an order that vouches for
// the fence and is told the age. The others stay until the controller's own fence succeeds, and are then woken
// without an order. The node comes back, and ends what still runs on it of the VMs that were called lost.
func TestFleet(t *testing.T) {
	proof := filepath.Join(t.TempDir(), "fenced-")
	h := harness.New(t, harness.Options{Nodes: 3, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string {
			return fmt.Sprintf("[node_loss]\npolicy = \"newest\"\nafter = \"20s\"\nfence = [\"/bin/sh\", \"-c\", 'test -e "+
				"%s$1', \"fence\"]\n[tracing]\nendpoint = \"http://127.0.0.1:4318\"\n", proof)
		}})
	a, b, c := h.Node(0), h.Node(1), h.Node(2)
	empty, err := c.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spans := collect(t, h)
	watch := listen(t, h)
	run := func(id string, args ...string) {
		a.Ctr(t, slices.Concat([]string{"run", "-d", "--runtime", "io.containerd.godwit.v1", "--annotation",
			"godwit.dev/memory=96MiB"}, args)...)
	}
	watch.Mark("boot")
	run(vm, "--cni", images.Probe, vm, "/bin/probe", "-beacon", net.JoinHostPort(harness.Gateway, beacons))
	for _, id := range []string{"two", "three", "four"} {
		run(id, images.Probe, id, "/bin/probe")
	}
	booted := after(t, watch, "boot")
	heard(t, a, "a", "b", "c")
	a.Godwit(t, "migrate", "four", "--to", "b", "--mode", "cold", "--operation", "traced-move")

	reached, open := holdManifest(h)
	t.Cleanup(open)
	a.Godwit(t, "drain", "a", "--to", "c", "--mode", "cold", "--detach")
	<-reached
	b.Godwit(t, "migrate", "four", "--to", "c", "--mode", "cold", "--detach")
	waits(t, a, map[string]int{"": 2, "move.outgoing": 1, "move.incoming": 1})
	open()
	done := settle(t, a, "two", "three", "four", vm)
	for what, ok := range map[string]func(listed) bool{
		"from a": func(m listed) bool { return m.Operation.Source == "a" },
		"to c":   func(m listed) bool { return m.Operation.Destination == "c" },
	} {
		if n := atOnce(t, done, ok); n != 2 {
			t.Errorf("%d moves %s at once", n, what)
		}
	}
	if out := a.Ctr(t, "tasks", "ls", "-q"); strings.TrimSpace(out) != "" {
		t.Errorf("left on the drained node: %s", out)
	}

	c.Godwit(t, "hibernate", "two", "--operation", "traced-sleep")
	refused(t, a, "cordoned (godwit uncordon a)", "wake", "--on", "a", "two")
	refused(t, a, "cordoned (godwit uncordon a)", "recover", vm, "--to", "a", "--fenced")
	refused(t, c, "cordoned (godwit uncordon a)", "migrate", "four", "--to", "a")
	refused(t, c, "takes no part", "uncordon", "a")
	chosen(t, a, b, "two")

	traced(t, spans, "traced-move", "0 godwitd: KIND_MIGRATE", "1 godwitd: transfer",
		"2 shim: godwit.machine.v1.Machine/Capture", "2 godwitd: godwit.node.v1.Peer/Prepare",
		"2 shim: godwit.machine.v1.Machine/Vote", "2 godwitd: godwit.node.v1.Peer/Run",
		"2 shim: godwit.machine.v1.Machine/Release", "1 godwit: godwit migrate")
	traced(t, spans, "traced-sleep", "0 godwitd: KIND_HIBERNATE", "2 shim: godwit.machine.v1.Machine/Capture",
		"2 godwitd: godwit.node.v1.Records/Commit", "1 godwit: godwit hibernate")
	refused(t, a, "node c answers", "recover", vm, "--to", "b", "--fenced")
	checkpoint, _ := take(t, c, "checkpoint", vm)
	then := ask(t, h, booted.From)
	plug, err := c.Unplug(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out := a.Godwit(t, "recover", vm); !strings.Contains(out, "would be restored from "+checkpoint.Operation.Digest+
		", ") || !strings.Contains(out, "s old") {
		t.Errorf("recover says %s", out)
	}
	watch.Mark("recovered")
	// until the node has been silent for long enough
	err = harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		_, err := a.RunGodwit(ctx, "recover", vm, "--to", "b", "--fenced")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	woken := after(t, watch, "recovered")
	if woken.Nonce != booted.Nonce || woken.Counter > then.Counter+1 || woken.Counter <= booted.Counter {
		t.Errorf("goes on at %+v; it was %+v when the checkpoint was done", woken.Beacon, then)
	}
	if now := ask(t, h, woken.From); now.BootID != then.BootID || now.PID != then.PID || !now.FileOK {
		t.Errorf("the VM is another one: %+v, was %+v", now, then)
	}
	recoveredBy(t, proof, a, b)
	back(t, c, plug, empty, watch, owners(t, a, b))
}

// chosen has a VM that sleeps wake where the controller says: while all nodes are cordoned nowhere, then where the
// first room is, away from its copy. When it has slept there, it wakes there again, by the copy.
func chosen(t *testing.T, a, b *harness.Node, id string) {
	t.Helper()
	a.Godwit(t, "cordon", "b")
	a.Godwit(t, "cordon", "c")
	refused(t, b, "node c is cordoned", "wake", id)
	waits := make(chan error, 1)
	go func() {
		_, err := b.RunGodwit(t.Context(), "wake", "--wait", "--timeout", "2m", "--operation", "waited", id)
		waits <- err
	}()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if all := events(t, a, 0); !slices.ContainsFunc(all, func(ev *nodev1.MoveEvent) bool {
			return ev.GetType() == moves.NoCapacity && ev.GetOperation() == "waited" &&
				strings.Contains(ev.GetReason(), "node a is cordoned")
		}) {
			return fmt.Errorf("events: %v", all)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	a.Godwit(t, "uncordon", "a")
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	a.Godwit(t, "uncordon", "b")
	a.Godwit(t, "uncordon", "c")
	a.Godwit(t, "hibernate", id)
	if out := b.Godwit(t, "wake", id); !strings.Contains(out, "runs on a") {
		t.Errorf("it slept on a, and was woken from b: %s", out)
	}
}

// owners tells on which nodes the tasks are.
func owners(t *testing.T, nodes ...*harness.Node) map[string]string {
	t.Helper()
	at := map[string]string{}
	for _, n := range nodes {
		for id := range strings.FieldsSeq(n.Ctr(t, "tasks", "ls", "-q")) {
			if id != "two" { // it was never at the node that was lost
				at[id] = n.Name
			}
		}
	}
	return at
}

// collect takes the spans of all nodes, at an address that each has for itself.
func collect(t *testing.T, h *harness.Harness) *otlptest.Collector {
	t.Helper()
	var all []net.Listener
	for _, n := range h.Nodes() {
		err := n.Enter(func() error {
			l, err := net.Listen("tcp4", "127.0.0.1:4318")
			all = append(all, l)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := otlptest.Serve(all...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// traced waits until the trace of an operation is one tree with these spans in it, each with
// its depth.
func traced(t *testing.T, c *otlptest.Collector, operation string, want ...string) {
	t.Helper()
	id := trace.Of(operation).Trace
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		tree, err := c.Tree(hex.EncodeToString(id[:]))
		for _, span := range want {
			depth, text, _ := strings.Cut(span, " ")
			n, _ := strconv.Atoi(depth)
			if line := strings.Repeat("  ", n) + text + "\n"; err == nil && !strings.HasPrefix(tree, line) &&
				!strings.Contains(tree, "\n"+line) {
				err = fmt.Errorf("no span %q in\n%s", span, tree)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// recoveredBy has the fence of the lost node c succeed: the VMs that are left there run
// on the other nodes soon, not before.
func recoveredBy(t *testing.T, proof string, nodes ...*harness.Node) {
	t.Helper()
	tasks := func() (all string) {
		for _, n := range nodes {
			all += n.Ctr(t, "tasks", "ls", "-q") + "\n"
		}
		return all
	}
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		all := events(t, nodes[0], 0)
		if !slices.ContainsFunc(all, func(ev *nodev1.MoveEvent) bool {
			return ev.GetType() == moves.NodeLost && strings.Contains(ev.GetReason(), "node_loss.fence")
		}) {
			return fmt.Errorf("events: %v", all)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if all := tasks(); strings.Contains(all, "three") || strings.Contains(all, "four") {
		t.Fatalf("woken without a fence: %s", all)
	}
	if err := os.WriteFile(proof+"c", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err = harness.Poll(t.Context(), bound, func(context.Context) error {
		if all := tasks(); !strings.Contains(all, "three") || !strings.Contains(all, "four") {
			return fmt.Errorf("tasks: %s", all)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%v", err, events(t, nodes[0], 0))
	}
	recovered := map[string]bool{}
	for _, ev := range events(t, nodes[0], 0) {
		if ev.GetType() == moves.Recovering {
			recovered[ev.GetVm().GetId()] = true
		}
	}
	if want := map[string]bool{"three": true, "four": true}; !maps.Equal(recovered, want) {
		t.Errorf("recovered were %v, not %v", recovered, want)
	}
}

// events answers what the node's daemon tells of moves by now, after the one of that id.
func events(t *testing.T, n *harness.Node, after uint64) []*nodev1.MoveEvent {
	t.Helper()
	client := moves.Local(filepath.Join(n.Dir, "run", "godwitd.sock"))
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	resp, err := client.Events(ctx, &nodev1.EventsRequest{After: after})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetEvents()
}

// waits polls until so many moves wait for each limit; empty: are under way.
func waits(t *testing.T, n *harness.Node, want map[string]int) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		why := queued(migrations(t, n))
		left := 0
		for word, count := range want {
			for _, reason := range why {
				if word == "" && reason == "" || word != "" && strings.Contains(reason, word) {
					count--
				}
			}
			left += max(count, -count)
		}
		if left != 0 {
			return fmt.Errorf("moves wait for %q, want %v", why, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// settle waits until no move is open, and answers the last one of each VM.
func settle(t *testing.T, n *harness.Node, ids ...string) map[string]listed {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if open := migrations(t, n); len(open) > 0 {
			return fmt.Errorf("open: %+v", open)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done := migrations(t, n, "--all")
	for _, id := range ids {
		if _, ok := done[id]; !ok {
			t.Fatalf("no move of %s: %+v", id, done)
		}
	}
	return done
}
