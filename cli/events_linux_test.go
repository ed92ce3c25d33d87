package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/history"
	"godwit.dev/godwit/migrate/node"
)

// historian is a godwitd with a history, which can be stopped and started again.
type historian struct {
	path, socket string
	history      *history.History
	stop         func()
}

func newHistorian(t *testing.T) *historian {
	t.Helper()
	k := &historian{path: filepath.Join(t.TempDir(), "events.jsonl"), socket: place(t)}
	k.start(t)
	return k
}

func (k *historian) start(t *testing.T) {
	t.Helper()
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	h := history.Open(k.path, "a")
	nodev1.RegisterNodeService(srv, &node.Service{Events: h})
	down := serve(t, srv, k.socket)
	k.history, k.stop = h, func() {
		down()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { down(); _ = h.Close() })
}

// add has so many VMs start, named vm-N from the number from on.
func (k *historian) add(from, to int) {
	for i := from; i <= to; i++ {
		k.history.Add(&nodev1.NodeEvent{Type: history.TypeVM, Event: history.Start, UnixNano: int64(i) * int64(time.Second),
			Vm: &nodev1.VM{Namespace: "default", Id: fmt.Sprintf("vm-%d", i)}})
	}
}

// written waits until so many events are.
func written(h *history.History, id uint64) {
	for h.Last(func(ev *nodev1.NodeEvent) bool { return ev.GetId() >= id }) == nil {
		time.Sleep(time.Millisecond)
	}
}

// starts are the names in what events has printed, in order.
func starts(text string) string {
	var names []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "start" {
			names = append(names, strings.TrimPrefix(f[2], "vm-"))
		}
	}
	return strings.Join(names, " ")
}

// Events goes on with a godwitd that is started again: each event is printed once, in order, also those that came
// while godwitd was away.
func TestEventsFollowOverRestarts(t *testing.T) {
	k := newHistorian(t)
	k.add(1, 2)
	c := runs(t, k.socket, "events --since 1")
	c.out.until(t, "vm-2\n", 1)
	k.add(3, 4)
	c.out.until(t, "vm-4\n", 1)
	k.stop()
	c.log.until(t, "waiting for godwitd", 1)
	k.start(t)
	k.add(5, 6)
	c.out.until(t, "vm-6\n", 1)
	c.interrupt()
	if code := <-c.code; code != 130 || starts(c.out.String()) != "1 2 3 4 5 6" ||
		strings.Contains(c.log.String(), "dropped") {
		t.Errorf("exit code %d; printed %s; said %s", code, &c.out, &c.log)
	}
}

// A connection that is cut after any number of bytes of an answer costs no event, and none is told twice.
func TestEventsAreCutInTheMiddle(t *testing.T) {
	k := newHistorian(t)
	k.add(1, 3)
	for _, cut := range []int64{60, 100, 150, 200, 300} {
		front := place(t)
		relay(t, front, k.socket, cut)
		c := runs(t, front, "events --since 1")
		c.out.until(t, "vm-3\n", 1)
		c.interrupt()
		if code := <-c.code; code != 130 || starts(c.out.String()) != "1 2 3" {
			t.Errorf("cut after %d bytes: exit code %d; printed %s; said %s", cut, code, &c.out, &c.log)
		}
	}
}

// Without --since, events begin with what happens from now on; with a time of the past for --until they end by
// themselves.
func TestEventsSinceUntil(t *testing.T) {
	k := newHistorian(t)
	k.add(1, 9)
	written(k.history, 9)
	c := runs(t, k.socket, "events")
	for i := 0; c.out.String() == ""; i++ { // until it has asked
		k.add(10+i, 10+i)
		time.Sleep(time.Millisecond)
	}
	if got := starts(c.out.String()); strings.HasPrefix(got, "1 ") || len(strings.Fields(got)) == 0 {
		t.Errorf("from now on: %s", got)
	}
	c.interrupt()
	for line, want := range map[string]string{
		"--since 3 --until 5": "3 4 5",
		"--since 1970-01-01T00:00:03Z --until 1970-01-01T00:00:03Z": "3",
		"--since 2.5 --until 3.999999999":                           "3",
		"--until 2":                                                 "1 2",
		"--since 0 --until 3 --filter vm=vm-1 -f vm=vm-2":           "1 2",
		"--since 0 --until 3 -f vm=vm-1 -f type=move":               "",
		"--since 0 --until 3 -f node=a -f event=start -f vm=vm-3":   "3",
	} {
		c := runs(t, k.socket, "events "+line)
		if code := <-c.code; code != 0 || starts(c.out.String()) != want || c.log.String() != "" {
			t.Errorf("%s: exit code %d; printed %q, want %q; said %s", line, code, starts(c.out.String()), want, &c.log)
		}
	}
	for line, says := range map[string]string{
		"--since yesterday":     "--since",
		"--until 99999999999":   "--until",
		"--since 5 --until 3":   "before",
		"-f color=red":          "The keys are",
		"-f event=begin":        "There are",
		"-f event":              "KEY=VALUE",
		"--format {{.nothing}}": "The keys are",
		"--format {{":           "--format",
	} {
		c := runs(t, k.socket, "events "+line)
		if code := <-c.code; code != 2 || !strings.Contains(c.log.String(), says) || c.out.String() != "" {
			t.Errorf("%s: exit code %d; said %s", line, code, &c.log)
		}
	}
}

// What a slow reader, or one that comes late, does not get any more is said.
func TestEventsTellOfGaps(t *testing.T) {
	k := newHistorian(t)
	k.add(1, 1)
	c := runs(t, k.socket, "events --since 1")
	c.out.until(t, "vm-1\n", 1)
	k.stop()
	c.log.until(t, "waiting", 1)
	h := history.Open(k.path, "a")
	for i := range 2 * history.Kept {
		h.Add(&nodev1.NodeEvent{Type: history.TypeVM, Event: "x", Vm: &nodev1.VM{Namespace: "default", Id: "x"}})
		if i%100 == 0 {
			written(h, uint64(i))
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	k.start(t)
	k.add(2, 2)
	c.out.until(t, "vm-2\n", 1)
	if said := c.log.String(); !strings.Contains(said, "events were dropped here: they are not kept any more") {
		t.Errorf("said %s", said)
	}
	late := runs(t, k.socket, "events --since 1 --until 3")
	if <-late.code; !strings.Contains(late.log.String(), "are not kept any more") {
		t.Errorf("said %s", &late.log)
	}
}

// A godwitd of an earlier build is said to have no events.
func TestEventsOfAnEarlierBuild(t *testing.T) {
	socket := place(t)
	(&tellers{}).serve(t, socket)
	c := runs(t, socket, "events")
	if code := <-c.code; code == 0 || !strings.Contains(c.log.String(), "godwit watch") {
		t.Errorf("exit code %d; said %s", code, &c.log)
	}
}

// Each kind of event in each format: columns of text with names of VMs, a line of JSON, a template.
func TestEventScreens(t *testing.T) {
	k := newHistorian(t)
	web := &nodev1.VM{Namespace: "default", Id: "0123456789ab"}
	k.history.Named(web, "web")
	code := uint32(137)
	at := int64(1e9)
	for _, ev := range []*nodev1.NodeEvent{
		{Type: "vm", Event: "exit", Vm: web, ExitCode: &code},
		{Type: "operation", Event: "hibernate", Phase: "done", Vm: web, Operation: "o", Source: "a",
			Digest: "sha256:" + strings.Repeat("ab", 32)},
		{Type: "move", Event: "move", Phase: "failed", Vm: web, Source: "a", Destination: "b", Reason: "it \x1b[2J fits not"},
		{Type: "vm", Event: "start", Vm: &nodev1.VM{Namespace: "k8s.io", Id: "pod"}},
	} {
		ev.UnixNano, at = at, at+1
		k.history.Add(ev)
	}
	show := func(line string) string {
		c := runs(t, k.socket, "events --since 0 --until 2 "+line)
		<-c.code
		return c.out.String() + c.log.String()
	}
	written(k.history, 4)
	for line, want := range map[string]string{
		"": `1970-01-01T00:00:01.000000000Z  exit         web               code 137
1970-01-01T00:00:01.000000001Z  hibernate    web               done, abababababab
1970-01-01T00:00:01.000000002Z  move         web               failed, a -> b, it \x1b[2J fits not
1970-01-01T00:00:01.000000003Z  start        k8s.io/pod
`,
		"-o name -f event=exit":                       "web\n",
		"--format {{.event}}:{{.name}} -f event=exit": "exit:web\n",
		"--format {{.vm.id}} -f phase=done":           "0123456789ab\n",
		"-f vm=k8s.io/pod --format {{.type}}":         "vm\n",
	} {
		if got := show(line); got != want {
			t.Errorf("%s: printed\n%s, want\n%s", line, got, want)
		}
	}
	doc := show("-o json -f event=exit")
	checkAgainst(t, "node-event", doc, &nodev1.NodeEvent{})
	if !strings.Contains(doc, `"exitCode":137`) || !strings.Contains(doc, `"time":"1970-01-01T00:00:01Z"`) {
		t.Errorf("printed %s", doc)
	}
}
