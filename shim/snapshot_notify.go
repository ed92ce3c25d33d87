package shim

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/retry"
)

// What a workload is told of its snapshots, by the command of godwit.dev/notify.
const (
	wordSnapshotted = "snapshotted" // the snapshot is durable
	wordRestored    = "restored"    // the VM goes on from it
)

// Word is one that a workload has yet to hear. The guest knows its command by ID, so that no
// successor of a shim that dies runs it again; the journal has it until it has ended.
type Word struct {
	Word   string `json:"word"`
	Digest string `json:"digest"`
	ID     string `json:"id"`
}

func newWord(word, digest string) Word {
	return Word{word, digest, "/" + word + "#" + uuid.NewString()}
}

// words are what a VM hears that wakes. It slept before its snapshot was durable. One that
// came in a live move was neither stored nor restored.
func (s *starting) words(j *Journal) []Word {
	if s.vm.origin.arrival != nil || j.Spec.Notify() == nil {
		return nil
	}
	return []Word{newWord(wordSnapshotted, j.Digest), newWord(wordRestored, j.Digest)}
}

// hears has the workload told that a checkpoint is durable. It returns when that is noted, or
// when the VM has ended.
func (vm *VM) hears(digest string) {
	vm.mu.Lock()
	ctx := vm.traffic.ctx
	if vm.journal.Spec.Notify() == nil || ctx == nil || ctx.Err() != nil {
		vm.mu.Unlock()
		return
	}
	tried := make(chan struct{})
	word := newWord(wordSnapshotted, digest)
	vm.traffic.watchers.Go(func() {
		err := vm.write(word.add)
		close(tried)
		if vm.insist(ctx, err, word.add) {
			vm.tell(ctx)
		}
	})
	vm.mu.Unlock()
	<-tried
}

func (w Word) add(j *Journal) { j.Untold = append(slices.Clone(j.Untold), w) }

func (w Word) strike(j *Journal) {
	j.Untold = slices.DeleteFunc(slices.Clone(j.Untold), func(other Word) bool { return other == w })
}

// tells reports whether a process is a command that the workload has yet to hear the end of.
func (j *Journal) tells(p *agentv1.Process) bool {
	return slices.ContainsFunc(j.Untold, func(w Word) bool { return w.ID == p.GetId() })
}

// insist changes the journal until that has succeeded, as long as the VM's traffic lasts; err
// is of the first try.
func (vm *VM) insist(ctx context.Context, err error, change func(*Journal)) bool {
	for ; err != nil && ctx.Err() == nil; err = vm.write(change) {
		vm.log.Error("note what the workload hears; it is tried again", "error", err)
		retry.Sleep(ctx, mendPause)
	}
	return err == nil
}

// tell has the workload hear what it has not heard yet, as a part of the VM's traffic: what
// stops that ends no command, and whoever lets it flow again waits for the same one.
func (vm *VM) tell(ctx context.Context) {
	vm.traffic.telling.Lock()
	defer vm.traffic.telling.Unlock()
	for ctx.Err() == nil {
		all := vm.noted().Untold
		if len(all) == 0 {
			return
		}
		if vm.standsStill() || vm.guest() == nil { // which an adopted VM may have yet to meet
			retry.Sleep(ctx, retryWait)
			continue
		}
		vm.tellOne(ctx, all[0])
	}
}

// standsStill reports whether containerd's client has paused the VM.
func (vm *VM) standsStill() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.state == Pausing || vm.state == Paused || vm.state == Resuming
}

// tellOne runs one command. However it ends, it fails nothing.
func (vm *VM) tellOne(ctx context.Context, w Word) {
	bound := time.Duration(vm.host.Config.Timeouts.Notify)
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	status, err := vm.owner.command(soon, w.ID, append(vm.spec().Notify(), w.Word, w.Digest))
	late := err != nil && soon.Err() != nil
	switch {
	case ctx.Err() != nil, late && vm.standsStill():
		return // it goes on, or has not begun
	case late:
		vm.log.Warn("the workload does not take a word in time: its command is killed", "word", w.Word, "digest", w.Digest, "within", bound)
	case err != nil:
		vm.log.Warn("tell the workload", "word", w.Word, "digest", w.Digest, "error", err)
	case status != 0:
		vm.log.Warn("the workload's command failed", "word", w.Word, "digest", w.Digest, "status", status)
	default:
		vm.log.Info("the workload was told", "word", w.Word, "digest", w.Digest)
	}
	var p *process
	if err != nil { // before nothing in the journal speaks of it any more
		p = vm.owner.suspect(w.ID)
	}
	switch struck := vm.insist(ctx, vm.write(w.strike), w.strike); {
	case struck && p != nil:
		vm.owner.dismiss(p)
	case struck:
		vm.owner.forgetCommand(w.ID)
	case p != nil: // the word is still to be told
		vm.owner.dropOrphan(p)
	}
}

// toldInterval is between two looks whether the workload has heard all.
const toldInterval = 10 * time.Millisecond

// told waits until the workload of a VM that runs has heard all, for as long as that may take:
// the snapshot of an operation has no command in it, and a move takes none along.
func (vm *VM) told(ctx context.Context) {
	waits := func() int {
		vm.mu.Lock()
		defer vm.mu.Unlock()
		if vm.state != Running {
			return 0
		}
		return len(vm.journal.Untold)
	}
	n := waits()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n)*(time.Duration(vm.host.Config.Timeouts.Notify)+guestBound))
	defer cancel()
	for ctx.Err() == nil && waits() > 0 {
		retry.Sleep(ctx, toldInterval)
	}
}
