// Package scheduler has godwitd's part in templates of boots: it says when one is made, lists
// and removes them. Making is the work of the shim's binary, in a process of its own.
package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/template"
)

const (
	requestInterval = time.Second      // how often is looked for shapes that templates are wanted of
	pause           = 15 * time.Second // after a maker that failed
)

// Scheduler has templates made, one process at a time, which ends with this one.
type Scheduler struct {
	config *config.Config
	args   []string      // of the maker
	turn   chan struct{} // full while a maker runs
}

// New is of a node; path is that of its configuration, or empty.
func New(cfg *config.Config, path string) *Scheduler {
	args := []string{program.Path(), program.Template}
	if path != "" {
		args = append(args, "-config", path)
	}
	return &Scheduler{config: cfg, args: args, turn: make(chan struct{}, 1)}
}

func (s *Scheduler) store() template.Store { return template.Store{Dir: s.config.TemplatesDir()} }

// Run has the maker run at the start, which removes what is of no use any more, and whenever
// a template is due.
func (s *Scheduler) Run(ctx context.Context) {
	if s.config.Template.Boot.Mode != "on" {
		return
	}
	tick := time.NewTicker(requestInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		due, err := s.store().Due(s.config.Template.Boot.After)
		if err == nil && (first || len(due) > 0) {
			_, err = s.maker(ctx, nil)
		}
		wait := tick.C
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "templates wait", "error", err)
			wait = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		}
	}
}

// order runs a maker for one template.
func (s *Scheduler) order(ctx context.Context, o template.Order) (template.Answer, error) {
	in, err := json.Marshal(o)
	if err != nil {
		return template.Answer{}, err
	}
	out, err := s.maker(ctx, in, "-order")
	if err != nil {
		return template.Answer{}, err
	}
	return template.DecodeAnswer(out)
}

// maker runs it in namespaces of its own: its VM is in no node's network, its mounts are its
// own, and no process of it goes on after it.
func (s *Scheduler) maker(ctx context.Context, in []byte, more ...string) ([]byte, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the maker of other templates: %w", context.Cause(ctx))
	}
	args := append(s.args[1:len(s.args):len(s.args)], more...)
	cmd := exec.CommandContext(ctx, s.args[0], args...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	// The death signal comes when the thread that forked has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	for line := range strings.Lines(said.String()) {
		slog.InfoContext(ctx, "templates", "maker", strings.TrimSpace(line))
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the maker of templates was ended: %w", context.Cause(ctx))
	}
	return out.Bytes(), err
}
