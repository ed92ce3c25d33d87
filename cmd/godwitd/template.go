package main

import (
	"bytes"
	"context"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/template"
)

// wishInterval is how often is looked for shapes that templates are wanted of.
const wishInterval = time.Second

// templates has them made by the shim's binary, one process at a time, which ends with
// this daemon.
type templates struct {
	config     *config.Config
	configPath string
}

// tend runs the maker at the start, which removes what is of no use any more, and whenever
// a template is due.
func (t *templates) tend(ctx context.Context) {
	if t.config.Template.Mode != "on" {
		return
	}
	store := template.Store{Dir: t.config.TemplatesDir()}
	tick := time.NewTicker(wishInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		due, err := store.Due(t.config.Template.After)
		if err == nil && (first || len(due) > 0) {
			err = t.make(ctx)
		}
		wait := tick.C
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "templates wait", "error", err)
			wait = time.After(engine.TendInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		}
	}
}

// make runs the maker in namespaces of its own: its VM has nobody's network, its mounts are
// its own, and no process of it outlives it.
func (t *templates) make(ctx context.Context) error {
	var args []string
	if t.configPath != "" {
		args = append(args, "-config", t.configPath)
	}
	cmd := exec.CommandContext(ctx, program.Path(), append([]string{program.Template}, args...)...)
	out := new(bytes.Buffer)
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	// The death signal comes when the thread that forked has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	for line := range strings.Lines(out.String()) {
		slog.InfoContext(ctx, "templates", "maker", strings.TrimSpace(line))
	}
	return err
}
