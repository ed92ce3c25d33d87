package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/filelock"
)

// A second daemon with the run_dir, the state_dir or the node name of one that runs is refused, and the key is named.
// It starts as soon as the first has ended. A daemon of another name runs in addition to it.
func TestOneDaemonOfAName(t *testing.T) {
	dir := t.TempDir()
	with := func(node, run, state string) *daemon {
		cfg := config.Default()
		cfg.Node, cfg.RunDir, cfg.StateDir = node, filepath.Join(dir, run), filepath.Join(dir, state)
		d := &daemon{config: cfg}
		t.Cleanup(d.close)
		if err := makeDirs(cfg); err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := with("a", "r1", "s1")
	if err := first.beOnly(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, second := range map[string]*daemon{
		"run_dir": with("b", "r1", "s2"), "state_dir": with("b", "r2", "s1"), "node": with("a", "r3", "s3"),
	} {
		err := second.beOnly(t.Context())
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), key+" =") {
			t.Errorf("the same %s: %v", key, err)
		}
		second.close()
	}
	if err := with("b", "r4", "s4").beOnly(t.Context()); err != nil {
		t.Errorf("another node: %v", err)
	}
	first.close()
	if err := with("a", "r5", "s5").beOnly(t.Context()); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// A look whether a daemon runs, which takes the lock for an instant, does not end a daemon that is just starting.
func TestLookAtTheLock(t *testing.T) {
	cfg := config.Default()
	dir := t.TempDir()
	cfg.Node, cfg.RunDir, cfg.StateDir = "a", filepath.Join(dir, "run"), filepath.Join(dir, "state")
	d := &daemon{config: cfg}
	t.Cleanup(d.close)
	if err := makeDirs(cfg); err != nil {
		t.Fatal(err)
	}
	look, err := os.Create(filepath.Join(cfg.RunDir, "godwitd.lock"))
	if err == nil {
		err = filelock.Lock(look, unix.LOCK_SH)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(lockPause, func() { _ = look.Close() })
	if err := d.beOnly(t.Context()); err != nil {
		t.Error(err)
	}
}
