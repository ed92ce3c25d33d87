package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/node"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// shimBinary takes over the VM of a shim that died.
const (
	shimBinary = "containerd-shim-godwit-v1"
	adoptRole  = "adopt" // its first argument
)

// adopter starts a shim for every VM that an operation holds and whose own shim is
// gone. Whether there is something to adopt is for that shim to say: it reads the VM's
// journal and ends at once if nothing is owed.
type adopter struct {
	config     *config.Config
	configPath string
	machines   *node.Machines
	containers interface {
		Has(ctx context.Context, vm *nodev1.VM) (bool, error)
	}
}

// end ends the adopted VMs whose container object was removed: no shim hears of that.
func (a *adopter) end(ctx context.Context) error {
	vms, err := a.machines.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, vm := range vms {
		q, err := a.machines.Query(ctx, vm)
		if err != nil || !q.GetAdopted() || q.GetRef() != nil {
			continue // an operation that holds it decides
		}
		if has, err := a.containers.Has(ctx, vm); has || err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, a.machines.End(ctx, vm))
	}
	return errors.Join(errs...)
}

func (a *adopter) adopt(ctx context.Context) error {
	vms, err := a.machines.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, vm := range vms {
		if _, err := a.machines.Query(ctx, vm); errdefs.IsUnavailable(err) {
			errs = append(errs, a.start(ctx, vm))
		}
	}
	return errors.Join(errs...)
}

// start runs the shim in a session of its own: it outlives this daemon as the VM does.
func (a *adopter) start(ctx context.Context, vm *nodev1.VM) error {
	log, err := os.OpenFile(filepath.Join(a.config.VMDir(vm.GetNamespace(), vm.GetId()), "adopt.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{adoptRole, "-namespace", vm.GetNamespace(), "-id", vm.GetId()}
	if a.configPath != "" {
		args = append(args, "-config", a.configPath)
	}
	cmd := exec.Command(binary(), args...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	slog.InfoContext(ctx, "shim started to adopt VM", "vm", vm.GetNamespace()+"/"+vm.GetId(), "pid", cmd.Process.Pid)
	go func() { // its outcome is what the next Query says
		if err := cmd.Wait(); err != nil {
			slog.InfoContext(ctx, "shim did not adopt VM", "vm", vm.GetNamespace()+"/"+vm.GetId(), "error", err, "log", log.Name())
		}
	}()
	return nil
}

// binary prefers the shim that was installed beside this daemon.
func binary() string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), shimBinary)
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return shimBinary
}
