// Package adoption starts the successor of a shim that died: the shim's binary in another role, for each VM
// of this node whose own shim does not answer.
package adoption

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/shim/exitwatch"
	"godwit.dev/godwit/shim/program"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Adopter starts a shim for every VM that an operation holds and whose own shim is
// gone. Whether there is something to adopt is for that shim to say: it reads the VM's
// journal and ends at once if there is nothing to do.
type Adopter struct {
	Config     *config.Config
	ConfigPath string
	Machines   *node.Machines
	Containers interface {
		Has(ctx context.Context, vm *nodev1.VM) (bool, error)
		HasTask(ctx context.Context, vm *nodev1.VM) (bool, error)
	}

	mu    sync.Mutex
	tried map[string]try       // by the VM's name
	dead  map[string]time.Time // since when a VM has no shim that answers
}

// forgetAfter is more than containerd gives what cleans up after a shim.
const forgetAfter = 20 * time.Second

// try is the last start of a shim for a VM whose shim has died.
type try struct {
	at   time.Time
	next time.Duration // that the one after it is put off
}

// tryAgain is how long the second start in a row is put off; each one more waits twice as
// long, up to a round.
const tryAgain = 250 * time.Millisecond

// Watch adopts a VM as soon as its shim has died; the rounds find what it misses. Where the host
// lacks what that takes, it is tried again after a round.
func (a *Adopter) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.watchOnce(ctx); ctx.Err() == nil {
			slog.WarnContext(ctx, "dead shims are found by rounds only for now", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(engine.PeriodicInterval):
		}
	}
}

// watchOnce returns when the deaths of shims cannot be watched any more. A VM whose successors die
// too, one after the other, is adopted less and less often.
func (a *Adopter) watchOnce(ctx context.Context) error {
	return exitwatch.Watch(ctx, a.Config.VMsDir(), func(namespace, id string) {
		vm := &nodev1.VM{Namespace: namespace, Id: id}
		select {
		case <-ctx.Done():
			return
		case <-time.After(a.pause(namespace + "/" + id)):
		}
		if err := a.adoptOne(ctx, vm); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "VM of a dead shim waits", "vm", namespace+"/"+id, "error", err)
		}
	})
}

// pause answers how long the start of a VM's next shim is put off: not at all, if the last
// one was started more than a round ago.
func (a *Adopter) pause(vm string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(a.tried, func(_ string, t try) bool { return now.Sub(t.at) > engine.PeriodicInterval })
	if a.tried == nil {
		a.tried = map[string]try{}
	}
	pause := a.tried[vm].next
	a.tried[vm] = try{at: now.Add(pause), next: min(max(tryAgain, 2*pause), engine.PeriodicInterval)}
	return pause
}

// End ends the adopted VMs whose container object was removed: containerd tells no shim of that.
func (a *Adopter) End(ctx context.Context) error {
	return a.each(func(vm *nodev1.VM) error {
		q, err := a.Machines.Query(ctx, vm)
		if err != nil || !q.GetAdopted() || q.GetRecord() != "OWN" || q.GetState() == "starting" {
			return nil // an operation that holds or wakes it decides
		}
		if has, err := a.Containers.Has(ctx, vm); has || err != nil {
			return err
		}
		return a.Machines.End(ctx, vm)
	})
}

// each does that for the VMs of this node, for so many at once that one whose shim hangs keeps none of
// the others waiting. What could not be listed costs the others nothing.
func (a *Adopter) each(do func(vm *nodev1.VM) error) error {
	vms, err := a.Machines.List()
	errs := append(make([]error, len(vms)), err)
	var group errgroup.Group
	group.SetLimit(engine.AtOnce)
	for i, vm := range vms {
		group.Go(func() error { errs[i] = do(vm); return nil })
	}
	_ = group.Wait() // each has its own error
	return errors.Join(errs...)
}

func (a *Adopter) Adopt(ctx context.Context) error {
	var mu sync.Mutex
	here := map[string]bool{}
	err := a.each(func(vm *nodev1.VM) error {
		mu.Lock()
		here[vm.GetNamespace()+"/"+vm.GetId()] = true
		mu.Unlock()
		return a.adoptOne(ctx, vm)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.dead, func(name string, _ time.Time) bool { return !here[name] })
	return err
}

func (a *Adopter) adoptOne(ctx context.Context, vm *nodev1.VM) error {
	_, err := a.Machines.Query(ctx, vm)
	if errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) && a.gone(ctx, vm) { // a directory without a journal
		return a.start(ctx, vm)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.dead, vm.GetNamespace()+"/"+vm.GetId())
	return nil
}

// gone reports whether containerd has given the VM of a dead shim up: it has no task of
// it, and had the time for what it starts to clean up, which it kills after five seconds.
func (a *Adopter) gone(ctx context.Context, vm *nodev1.VM) bool {
	name := vm.GetNamespace() + "/" + vm.GetId()
	a.mu.Lock()
	if a.dead == nil {
		a.dead = map[string]time.Time{}
	}
	since, seen := a.dead[name]
	if !seen {
		since = time.Now()
		a.dead[name] = since
	}
	a.mu.Unlock()
	if time.Since(since) < forgetAfter {
		return false
	}
	has, err := a.Containers.HasTask(ctx, vm)
	return err == nil && !has
}

// start runs the shim in a session of its own. The shim goes on after the end of this daemon, as
// the VM does.
func (a *Adopter) start(ctx context.Context, vm *nodev1.VM) error {
	log, err := os.OpenFile(filepath.Join(a.Config.VMDir(vm.GetNamespace(), vm.GetId()), "adopt.log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{program.Adopt, "-namespace", vm.GetNamespace(), "-id", vm.GetId()}
	if a.ConfigPath != "" {
		args = append(args, "-config", a.ConfigPath)
	}
	if a.gone(ctx, vm) {
		args = append(args, "-forgotten")
	}
	cmd := exec.Command(program.Path(), args...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	slog.InfoContext(ctx, "shim started to adopt VM", "vm", vm.GetNamespace()+"/"+vm.GetId(), "pid", cmd.Process.Pid)
	go func() { // its outcome is what the next Query says
		if err := cmd.Wait(); err != nil {
			slog.InfoContext(ctx, "shim did not adopt VM", "vm", vm.GetNamespace()+"/"+vm.GetId(), "error", err, "log",
				log.Name())
		}
	}()
	return nil
}
