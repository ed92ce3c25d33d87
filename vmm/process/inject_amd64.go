package process

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// syscallBytes are those of the instruction.
var syscallBytes = []byte{0x0f, 0x05}

// stepTries is how often a signal may come before the instruction does.
const stepTries = 100

// inject executes one system call, of three arguments at most, in the stopped process and puts its
// registers back.
// Signals that come in between are held.
func inject(pid int, at uint64, held *signals, number uint64, args ...uint64) (int, error) {
	var own unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &own); err != nil {
		return 0, fmt.Errorf("read registers: %w", err)
	}
	regs := own
	regs.Rip, regs.Rax = at, number
	for i, to := range []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx}[:len(args)] {
		*to = args[i]
	}
	regs.Orig_rax = ^uint64(0) // no system call to restart
	if err := unix.PtraceSetRegs(pid, &regs); err != nil {
		return 0, fmt.Errorf("set registers: %w", err)
	}
	stepErr := step(pid, &regs, held)
	if stepErr != nil && !errors.Is(stepErr, errBusy) {
		return 0, fmt.Errorf("step: %w", spoiled(stepErr))
	}
	if err := unix.PtraceSetRegs(pid, &own); err != nil {
		return 0, fmt.Errorf("put registers back: %w", spoiled(err))
	}
	if stepErr != nil {
		return 0, fmt.Errorf("step: %w", stepErr)
	}
	if regs.Rip != at+uint64(len(syscallBytes)) {
		return 0, fmt.Errorf("stopped at %#x, not after %#x: %w", regs.Rip, at, errSpoiled)
	}
	result := int64(regs.Rax)
	if result < 0 {
		return 0, fmt.Errorf("system call %d: %w", number, unix.Errno(-result))
	}
	return int(result), nil
}

// errBusy says that nothing was executed: signals came instead.
var errBusy = fmt.Errorf("signals keep coming: %w", errdefs.ErrUnavailable)

// step executes one instruction. A process that has a signal stops for that first.
func step(pid int, regs *unix.PtraceRegs, held *signals) error {
	for range stepTries {
		if err := unix.PtraceSingleStep(pid); err != nil {
			return err
		}
		status, err := stopped(pid)
		if err != nil {
			return err
		}
		before := regs.Rip
		if err := unix.PtraceGetRegs(pid, regs); err != nil {
			return err
		}
		signal := status.StopSignal()
		switch {
		case signal == unix.SIGTRAP && regs.Rip != before:
			return nil
		case regs.Rip != before || signal == unix.SIGSEGV || signal == unix.SIGBUS || signal == unix.SIGILL:
			return fmt.Errorf("stopped at %#x by signal %s", regs.Rip, signal)
		}
		held.add(signal)
	}
	return errBusy
}
