//go:build integration

package vmdisk

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// endsInMoves has a guest power itself off, and another one reset itself, in the passes of live
// moves.
func (s *site) endsInMoves(t *testing.T, vm string) {
	c := foreground(t, s.a, "task", "start", vm)
	awaitTick(t, c.out.String, func(s state) bool { return s["boots"] == "2" })
	moved := s.passing(t, vm, "1MiB") // it would take minutes
	c.sends("umount /mnt; poweroff -f")
	if err := <-moved; err == nil || !strings.Contains(err.Error(), "the guest ended (exit 0, powered off)") {
		t.Fatalf("a move whose guest powers itself off: %v", err)
	}
	if code := c.ended(); code != 0 {
		t.Errorf("ctr ended with %d: %s", code, c.errs)
	}
	s.runsOnly(t, nil, vm)

	c = foreground(t, s.a, "task", "start", vm)
	awaitTick(t, c.out.String, func(s state) bool { return s["boots"] == "3" })
	there := s.later(s.b, vm)
	moved = s.passing(t, vm, "16MiB")
	c.sends("umount /mnt; reboot -f")
	if err := <-moved; err != nil { // the VMM lives on, and so does the move
		t.Fatalf("a move whose guest is reset: %v", err)
	}
	// What was typed too late for a pass is done after the hand-over.
	t.Logf("it had booted before it went: %v", strings.Contains(c.out.String(), "boots=4 "))
	awaitTick(t, there, func(s state) bool { return s["boots"] == "4" })
	s.runsOnly(t, s.b, vm)
	s.b.Ctr(t, "task", "kill", "-s", "SIGKILL", vm)
	wait(t, "the end of the task", func() error {
		out, err := s.b.RunCtr(t.Context(), "task", "ls")
		if err == nil && strings.Contains(out, "STOPPED") {
			return nil
		}
		return fmt.Errorf("%s, %v", out, err)
	})
	s.runsOnly(t, nil, vm)
	s.b.Ctr(t, "task", "delete", vm)
}

// passing orders a live move that goes on for seconds, and returns when pages go.
func (s *site) passing(t *testing.T, vm, bandwidth string) <-chan error {
	t.Helper()
	moved := make(chan error, 1)
	go func() {
		_, err := s.a.RunGodwit(t.Context(), "migrate", "--to", s.b.Name, "--mode", "live", "--bandwidth", bandwidth, vm)
		moved <- err
	}()
	wait(t, "pages of "+vm+" to go", func() error {
		out, err := s.a.RunGodwit(t.Context(), "-o", "json", "migrations")
		if err != nil {
			return err
		}
		var list struct {
			Moves []struct{ Transfer struct{ Pass int } }
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		for _, m := range list.Moves {
			if m.Transfer.Pass > 0 {
				return nil
			}
		}
		select {
		case err := <-moved:
			moved <- err
			return err
		default:
			return fmt.Errorf("no move tells of its passes: %s", out)
		}
	})
	return moved
}

// runsOnly wants the VM to run at one node, or nowhere.
func (s *site) runsOnly(t *testing.T, at *harness.Node, vm string) {
	t.Helper()
	for _, n := range s.h.Nodes() {
		err := harness.Poll(t.Context(), stepTimeout, func(ctx context.Context) error {
			out, err := n.RunCtr(ctx, "task", "ls")
			if err == nil && strings.Contains(out, "RUNNING") != (n == at) {
				err = fmt.Errorf("tasks of node %s: %s", n.Name, out)
			}
			return err
		})
		if err != nil {
			t.Errorf("VM %s: %v", vm, err)
		}
	}
}
