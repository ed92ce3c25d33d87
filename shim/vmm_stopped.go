package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/vmm"
)

// stoppedVMM is the VMM of an adopted VM that has voted: its process is stopped and
// answers nothing. It can be killed, or resumed, which takes it over first.
type stoppedVMM struct {
	vm   *VM
	id   proc.ID
	proc vmm.Process

	once sync.Once
	done chan struct{}
}

// detacher is a machine that can be left to who adopts it next.
type detacher interface{ Detach() error }

func newStoppedVMM(vm *VM, id proc.ID, p vmm.Process) *stoppedVMM {
	return &stoppedVMM{vm: vm, id: id, proc: p, done: make(chan struct{})}
}

// Resume is called once the process is continued.
func (s *stoppedVMM) Resume(ctx context.Context) error {
	driver, err := s.vm.driver(ctx)
	if err != nil {
		return notAdopted(err)
	}
	m, err := driver.Adopt(ctx, leftVMM(s.vm.journal.Load()))
	if err != nil {
		return notAdopted(err)
	}
	if err := m.Resume(ctx); err != nil {
		if d, ok := m.(detacher); ok { // the next try takes it over anew
			err = errors.Join(err, d.Detach())
		}
		return err
	}
	s.vm.mu.Lock()
	s.vm.machine = m
	s.vm.mu.Unlock()
	go s.vm.watchVMM()
	return nil
}

// notAdopted is why the VMM could not be taken over. Where time may mend that, the VM stands still as before. A driver
// that is not there any more, or a VMM of which it says that it is none of its own, stays so.
func notAdopted(err error) error {
	if errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", vmm.ErrNotResumed, err)
	}
	return fmt.Errorf("take over the VMM: %w", err)
}

func (s *stoppedVMM) Kill(ctx context.Context) error {
	if err := s.id.Kill(ctx); err != nil {
		return err
	}
	s.once.Do(func() { close(s.done) })
	return nil
}

func (s *stoppedVMM) Done() <-chan struct{}    { return s.done }
func (s *stoppedVMM) Events() <-chan vmm.Event { return nil }
func (s *stoppedVMM) Exit() vmm.Exit           { return vmm.Exit{Status: killed, At: time.Now()} }
func (s *stoppedVMM) Process() vmm.Process     { return s.proc }
func (s *stoppedVMM) Pause(context.Context) error {
	return nil // it was paused before it was stopped
}
func (s *stoppedVMM) SaveState(context.Context, *os.File) error { return s.refuse("save state") }
func (s *stoppedVMM) LoadState(context.Context, *os.File) error { return s.refuse("load state") }
func (s *stoppedVMM) PowerButton(context.Context) error         { return s.refuse("press power button") }
func (s *stoppedVMM) AddNIC(context.Context, vmm.NIC) error     { return s.refuse("add NIC") }
func (s *stoppedVMM) RemoveNIC(context.Context, string) error   { return s.refuse("remove NIC") }
func (s *stoppedVMM) Ejected(context.Context, string) (bool, error) {
	return false, s.refuse("look for NIC")
}
func (s *stoppedVMM) AddDisk(context.Context, vmm.Disk) error  { return s.refuse("add disk") }
func (s *stoppedVMM) RemoveDisk(context.Context, string) error { return s.refuse("remove disk") }
func (s *stoppedVMM) DiskEjected(context.Context, string) (bool, error) {
	return false, s.refuse("look for disk")
}

func (s *stoppedVMM) refuse(call string) error {
	return fmt.Errorf("%s: the VMM is stopped: %w", call, errdefs.ErrFailedPrecondition)
}
