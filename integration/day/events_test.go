//go:build integration

package day

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// The day of a VM is told by events, in order: it is made and starts, runs a command, is checkpointed, sleeps, wakes.
// It sleeps again, wakes by a start of its container, gets a signal, and goes. godwitd is killed meanwhile, and goes on
// with the list.
func TestEvents(t *testing.T) {
	s := newSite(t)
	s.ok("exec", "web", "true")
	s.ok("checkpoint", "web")
	s.ok("hibernate", "web")
	s.ok("wake", "web")
	if err := errors.Join(s.Node.Godwitd.Kill(), s.StartGodwitd(t.Context())); err != nil {
		t.Fatal(err)
	}
	s.ok("hibernate", "web")
	s.Ctr(t, "task", "start", "-d", "web")
	s.ok("kill", "--signal", "WINCH", "web")
	s.ok("stop", "--time", "0", "web")
	s.ok("rm", "-f", "web")
	var got []string
	text := s.ok("events", "--since", "0", "--until", "0s", "--filter", "vm=web")
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		word := f[1]
		if len(f) > 3 && slices.Contains([]string{"hibernate", "wake", "checkpoint"}, word) {
			word += " " + strings.TrimSuffix(f[3], ",")
		}
		got = append(got, word)
	}
	t.Log(text)
	at := 0
	for _, word := range []string{"create", "start", "exec-start", "exec-exit", "checkpoint begun", "checkpoint done",
		"hibernate begun", "hibernate done", "wake begun", "start", "wake done",
		"hibernate done", "wake begun", "wake committed", "wake done", "kill", "exit", "delete"} {
		i := slices.Index(got[at:], word)
		if i < 0 {
			t.Fatalf("no %q after %q", word, got[:at])
		}
		at += i + 1
	}
	if !strings.Contains(text, "SIGWINCH") {
		t.Error("no signal is named")
	}
	if !strings.Contains(text, "it sleeps") {
		t.Error("the end of a VM that sleeps does not say so")
	}
	if all := s.ok("events", "--since", "0", "--until", "0s", "-f", "type=node"); !strings.Contains(all, "gap") {
		t.Errorf("godwitd was killed: %s", all)
	}
}
