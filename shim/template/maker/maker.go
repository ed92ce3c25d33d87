// Package maker is the process that makes a node's templates and removes old ones. It is process
// 1 of a namespace of its own. However it is killed, the VMM that it has started ends with it.
package maker

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/dircache"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/vmm"
)

// niceness of the maker and its VMs: every other process that wants a CPU has it first.
const niceness = 19

// firstToGo is the most of proc(5)'s oom_score_adj.
const firstToGo = "1000"

// Main makes what is due, one after the other, and removes what is not wanted any more. With
// -order it makes what a template.Order of in says, and writes the template.Answer to out.
func Main(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(program.Template, flag.ContinueOnError)
	path := flags.String("config", "", "configuration of the node")
	ordered := flags.Bool("order", false, "make what standard input says")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("template: godwitd starts it, as process 1 of a pid namespace of its own: %w",
			errdefs.ErrFailedPrecondition)
	}
	cfg, err := config.Load(*path)
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := isolateMounts(cfg.RunDir); err != nil {
		return err
	}
	host, err := join.Host(cfg)
	if err != nil {
		return err
	}
	if *ordered {
		return json.NewEncoder(out).Encode(template.AnswerOf(makeOrdered(ctx, host, in)))
	}
	return round(ctx, host)
}

// makeOrdered makes the template of an order, also of a shape that was refused before.
func makeOrdered(ctx context.Context, host *shim.Host, in io.Reader) (key string, existed bool, err error) {
	var o template.Order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return "", false, fmt.Errorf("read order: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if host.Templates == nil {
		return "", false, fmt.Errorf("template.boot.mode is off on this node: %w", errdefs.ErrFailedPrecondition)
	}
	shape, err := shim.ShapeOf(ctx, host, o)
	if err != nil {
		return "", false, err
	}
	lock, err := host.Templates.Lock()
	if err != nil {
		return "", false, err
	}
	defer lock.Close()
	if t, err := host.Templates.Open(shape); err == nil {
		return shape.Key(), true, t.Close()
	}
	if err := makeOne(ctx, host, shape, filepath.Join(host.Config.RunDir, "order")); err != nil {
		return "", false, err
	}
	return shape.Key(), false, sweep(ctx, host)
}

// isolateMounts makes mounts that no other process sees: the processes of this namespace, and room for
// sockets, in place of the node's.
func isolateMounts(runDir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("godwit-template", runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=0700"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", runDir, err)
	}
	return lowerPriority()
}

// lowerPriority gives this process and all that it starts the lowest priority. It is set for the whole
// group, as a priority is a thread's alone, and any thread may start the VMM. No admission
// counts its RAM, so it is the first to go when the host has none left.
func lowerPriority() error {
	if err := unix.Setpriority(unix.PRIO_PGRP, 0, niceness); err != nil {
		return fmt.Errorf("lower priority: %w", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(firstToGo), 0); err != nil {
		return fmt.Errorf("be the first that the host ends for its memory: %w", err)
	}
	return nil
}

func round(ctx context.Context, host *shim.Host) error {
	cfg, store := host.Config, host.Templates
	if store == nil {
		return nil
	}
	lock, err := store.Lock()
	if errdefs.IsUnavailable(err) {
		return nil // another does what there is to do
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := sweep(ctx, host); err != nil {
		return err
	}
	due, err := store.Due(cfg.Template.Boot.After)
	if err != nil {
		return err
	}
	var errs []error
	for i, shape := range due {
		errs = append(errs, makeOne(ctx, host, shape, filepath.Join(cfg.RunDir, fmt.Sprint(i))))
	}
	return errors.Join(errors.Join(errs...), sweep(ctx, host))
}

func sweep(ctx context.Context, host *shim.Host) error {
	cfg := host.Config.Template.Boot
	return host.Templates.Sweep(dircache.Bounds{Count: cfg.Max, Bytes: uint64(cfg.MaxSize)},
		func(s template.Shape) bool { return shim.CurrentShape(ctx, host, s) })
}

// makeOne makes the template of a shape that a VM can still have here.
func makeOne(ctx context.Context, host *shim.Host, shape template.Shape, dir string) error {
	if !shim.CurrentShape(ctx, host, shape) {
		return host.Templates.Forget(shape)
	}
	driver, err := host.Driver(ctx, shape.VMM)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	cfg, begun := host.Config, time.Now()
	m := &template.Maker{
		Store: *host.Templates, Driver: driver, Dir: dir, User: cfg.VMM.TemplateUser(), Kernel: cfg.Guest.Kernel,
		Initrd: cfg.Guest.Initrd,
		Tap:    network.DetachedTap, MaxBytes: uint64(cfg.Template.Boot.MaxSize),
		Prepare: func(ctx context.Context, m vmm.Machine,
			console string) (string, error) {
			return prepare(ctx, host, m, console, shape.HotDisks)
		},
	}
	if err := m.Make(ctx, shape); err != nil {
		return err
	}
	slog.InfoContext(ctx, "template made", "template", shape.Key(), "memory", shape.Memory, "vcpus", shape.VCPUs,
		"disks", len(shape.Disks), "nics", len(shape.NICs), "took", time.Since(begun))
	return nil
}

// prepare is all that a template's guest ever hears.
func prepare(ctx context.Context, host *shim.Host, m vmm.Machine, console string, pod bool) (kernel string,
	err error) {
	a, err := host.Dial(ctx, m, console, func(ctx context.Context, a agentv1.AgentService) error {
		r, err := a.Prepare(ctx, &agentv1.PrepareRequest{Pod: pod})
		kernel = r.GetKernel()
		return err
	})
	if err != nil {
		return "", err
	}
	return kernel, a.Close()
}
