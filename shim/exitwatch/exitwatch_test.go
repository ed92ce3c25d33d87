package exitwatch

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/shim/proc"
)

// note writes a journal as a shim does: whole, under its name.
func note(t *testing.T, dir string, id proc.ID) {
	t.Helper()
	write(t, dir, "OWN", id)
}

func write(t *testing.T, dir, phase string, id proc.ID) {
	t.Helper()
	data, err := json.Marshal(map[string]any{"shim": id, "phase": phase})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node.json.tmp"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "node.json.tmp"), filepath.Join(dir, "node.json")); err != nil {
		t.Fatal(err)
	}
}

// process is one that lives until it is killed.
func process(t *testing.T) (id proc.ID, kill func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := proc.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(kill)
	return id, kill
}

func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vms")
	early, killEarly := process(t)
	note(t, filepath.Join(dir, "default", "early"), early)
	died := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, dir, func(namespace, id string) {
			select {
			case died <- namespace + "/" + id:
			case <-ctx.Done():
			}
		})
	}()
	want := func(name string) {
		t.Helper()
		select {
		case got := <-died:
			if got != name {
				t.Fatalf("%s died, want %s", got, name)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody says that %s died", name)
		}
	}
	killEarly()
	want("default/early")

	// A successor is written down, and dies too.
	next, killNext := process(t)
	note(t, filepath.Join(dir, "default", "early"), next)
	killNext()
	want("default/early")

	// A namespace that came later. The first shim was replaced while it lived: its end is no VM's
	// loss. One whose journal was removed ended as it should.
	first, killFirst := process(t)
	second, killSecond := process(t)
	deleted, killDeleted := process(t)
	late := filepath.Join(dir, "other", "late")
	note(t, late, first)
	note(t, late, second)
	note(t, filepath.Join(dir, "other", "deleted"), deleted)
	if err := os.RemoveAll(filepath.Join(dir, "other", "deleted")); err != nil {
		t.Fatal(err)
	}
	killFirst()
	killDeleted()
	killSecond()
	want("other/late")

	// One that was dead when it was written down.
	note(t, filepath.Join(dir, "other", "dead"), first)
	want("other/dead")

	_, killLast := process(t)
	defer killLast()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
	select {
	case name := <-died:
		t.Errorf("%s died once more", name)
	default:
	}
}

// I4: a fence that names no process is told at once: no shim answers for it, and the operation
// that it is about may wait for that. Each such fence is told, also after one that was answered
// for. A journal of anything else without a process is not.
func TestFences(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "vms")
	write(t, filepath.Join(dir, "default", "early"), fenced, proc.ID{})
	told := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Watch(ctx, dir, func(_, id string) {
			select {
			case told <- id:
			case <-ctx.Done():
			}
		})
	}()
	want := func(id string) {
		t.Helper()
		select {
		case got := <-told:
			if got != id {
				t.Fatalf("told of %s, want %s", got, id)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody tells of %s", id)
		}
	}
	want("early")
	note(t, filepath.Join(dir, "default", "none"), proc.ID{})
	late := filepath.Join(dir, "default", "late")
	write(t, late, fenced, proc.ID{})
	want("late")
	answering, kill := process(t)
	write(t, late, fenced, answering)
	kill()
	want("late")
	for range 2 { // the second one hides who had it between them
		write(t, late, fenced, proc.ID{})
		want("late")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
}

// With a process alive, Watch ends with its context all the same.
func TestWatchEnds(t *testing.T) {
	dir := t.TempDir()
	self, err := proc.Find(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	note(t, filepath.Join(dir, "default", "vm"), self)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Watch(ctx, dir, func(string, string) { t.Error("it died") }); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
}
