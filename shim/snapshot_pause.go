package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/gcpause"
	"godwit.dev/godwit/shim/journal"
)

// livePause brings the VM of a capture to a stop, for the worker that makes the snapshot.
type livePause struct {
	vm    *VM
	c     *capture
	state *os.File
	// paused is of a task that was paused before: its guest cannot be asked anything.
	paused bool
	notes  diskNotes

	begun, stopped, saved time.Time
	bootID                string
	uptime                uint64
}

// watch ends the capture when the VMM goes too early, and says so. It returns when ctx ends.
func (s *livePause) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-s.vm.machine.Done():
		if !s.c.isSaved() {
			cancel(s.vm.ending.early())
		}
	case <-ctx.Done():
	}
}

// Prepare takes out what does not go along, and asks the guest what it has to be asked. It runs
// on, answers, and its output flows.
func (s *livePause) Prepare(ctx context.Context) error {
	vm := s.vm
	s.notePinned()
	if s.paused {
		return nil
	}
	if err := vm.nic.unplug(ctx); err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, s.lastAnswer())
	info, err := vm.agent.Info(ask, &agentv1.InfoRequest{})
	cancel()
	if err != nil {
		return fmt.Errorf("ask guest: %w", err)
	}
	s.bootID, s.uptime = info.GetBootId(), info.GetUptimeMs()
	for _, t := range vm.allTasks() {
		t.refreshStats(ctx)
	}
	return nil
}

// notePinned says that the CPUs of this node, which the VM is pinned to, do not go along.
func (s *livePause) notePinned() {
	b := s.vm.owner.bundle
	if s.c.req.GetCheckpoint() || b == nil || b.CPUs == "" && b.Mems == "" {
		return
	}
	s.vm.log.Info("the VM is pinned to parts of this node: another node that runs it uses all of its own", "cpus", b.CPUs,
		"mems", b.Mems)
}

// gcDelay is how long garbage is not collected from the pause, or from the arrival of a state, on: longer
// than a VM that moves live stands still for.
const gcDelay = 500 * time.Millisecond

// Pause ends the talk with the guest and stops the VM.
func (s *livePause) Pause(ctx context.Context) error {
	vm := s.vm
	vm.stopTraffic()
	if s.paused {
		s.bootID, s.begun = vm.journal.Load().BootID, time.Now()
		s.stopped = s.begun
		return nil
	}
	if vm.owner.init.pump.Reported() != nil { // it ends here, and is not heard of twice
		return vm.ending.early()
	}
	gcpause.Defer(gcDelay)
	s.begun = time.Now()
	if err := vm.pod.pause(func() error { return vm.machine.Pause(ctx) }); err != nil {
		return err
	}
	s.stopped = time.Now()
	return nil
}

// lastAnswer is how long the guest may take for its last answer before the pause: where
// guests are known to be slow, it is longer than that of any other call.
func (s *livePause) lastAnswer() time.Duration {
	return max(guestBound, time.Duration(s.vm.host.Config.Timeouts.Boot)/6)
}

// Save writes the device state, and tells where the guest's session stands.
func (s *livePause) Save(ctx context.Context) (json.RawMessage, error) {
	s.c.fixStdio()
	resume := journal.Resume{BootID: s.bootID, UptimeMS: s.uptime, Init: s.vm.owner.init.pump.Stop(),
		NoOutput: !s.vm.owner.init.pump.HasOutput()}
	s.vm.pod.resumed(&resume, standing)
	if s.c.execs {
		resume.Execs = s.movedExecs()
	}
	data, err := json.Marshal(resume)
	if err == nil && len(data) > resumeMax {
		err = errTooMuch(len(data), len(resume.Execs))
	}
	if err != nil {
		return nil, err
	}
	if agent := s.vm.guest(); agent != nil { // until the VM runs: RAM is read after its state
		if err := agent.Hold(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.vm.machine.SaveState(ctx, s.state); err != nil {
		return nil, err
	}
	s.notes.settle()
	s.saved = time.Now()
	return data, s.c.markSaved()
}
