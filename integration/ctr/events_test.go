//go:build integration

package ctr

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// event of a task as `ctr events` prints it.
type event struct {
	topic  string
	ID     string `json:"container_id"`
	ExecID string `json:"exec_id"`
	// The id of what ended; containerd's exit event calls it so.
	Process string `json:"id"`
	PID     uint32 `json:"pid"`
	Status  uint32 `json:"exit_status"`
}

// watchEvents starts `ctr events` and waits until it sees what happens.
func watchEvents(t *testing.T, n *harness.Node) *command {
	t.Helper()
	c := start(t, n, nil, "events")
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		n.Ctr(t, "namespaces", "label", "default", "seen=yes")
		if !strings.Contains(c.stdout.String(), "/namespaces/update") {
			return errors.New("no event of the label")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventsOf a VM, in order.
func eventsOf(t *testing.T, c *command, vm string) []event {
	t.Helper()
	var all []event
	for _, line := range strings.Split(c.stdout.String(), "\n") {
		at := strings.Index(line, "/tasks/")
		brace := strings.Index(line, "{")
		if at < 0 || brace < at || !strings.HasSuffix(line, "}") {
			continue
		}
		e := event{topic: strings.TrimSpace(line[at:brace])}
		if err := json.Unmarshal([]byte(line[brace:]), &e); err != nil {
			t.Fatalf("event %q: %v", line, err)
		}
		if e.ID == vm {
			all = append(all, e)
		}
	}
	return all
}

// process is what an event is about.
func (e event) process() string {
	if e.ExecID != "" {
		return e.ExecID
	}
	if e.Process != "" {
		return e.Process
	}
	return e.ID
}

// checkEvents waits for the last of the events that are wanted of the VM itself. Then it checks that these came in this
// order, each once, and that each exec had its own: added, started, exit, in this order, each once, and none after the
// VM's exit.
func checkEvents(t *testing.T, c *command, vm string, want ...string) {
	t.Helper()
	var all []event
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		all = eventsOf(t, c, vm)
		if !slices.ContainsFunc(all, func(e event) bool { return e.process() == vm && e.topic == want[len(want)-1] }) {
			return errors.New(c.stdout.String())
		}
		return nil
	})
	if err != nil {
		t.Fatalf("wait for event %s of %s: %v", want[len(want)-1], vm, err)
	}
	own := map[string][]string{}
	for _, e := range all {
		if len(own[vm]) > 0 && own[vm][len(own[vm])-1] == "/tasks/exit" && e.process() != vm {
			t.Errorf("event %+v after the VM's exit", e)
		}
		own[e.process()] = append(own[e.process()], e.topic)
	}
	for process, got := range own {
		if process == vm && !slices.Equal(got, want) {
			t.Errorf("events of %s: %v, want %v", vm, got, want)
		}
		if text := strings.Join(got, " "); process != vm && !slices.Contains(lives, text) {
			t.Errorf("events of %s: %s", process, text)
		}
	}
	t.Logf("%d events", len(all))
}

// lives of an exec: it ran, or could not be started.
var lives = []string{
	"/tasks/exec-added /tasks/exec-started /tasks/exit",
	"/tasks/exec-added /tasks/exec-started /tasks/exit /tasks/delete",
	"/tasks/exec-added",
	"/tasks/exec-added /tasks/delete",
}
