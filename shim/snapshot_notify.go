package shim

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"godwit.dev/godwit/internal/retry"
	"godwit.dev/godwit/shim/journal"
)

// What a workload is told of its snapshots, by the command of godwit.dev/notify.
const (
	noticeSnapshotted = "snapshotted" // the snapshot is durable
	noticeRestored    = "restored"    // the VM goes on from it
)

func newNotice(word, digest string) journal.Notice {
	return journal.Notice{Word: word, Digest: digest, ID: "/" + word + "#" + uuid.NewString()}
}

// wakeNotices are what a VM hears that wakes. It slept before its snapshot was durable. One that
// came in a live move was neither stored nor restored.
func (s *starting) wakeNotices(j *journal.Journal) []journal.Notice {
	if s.vm.origin.arrival != nil || j.Spec.Notify() == nil {
		return nil
	}
	return []journal.Notice{newNotice(noticeSnapshotted, j.Digest), newNotice(noticeRestored, j.Digest)}
}

// notices tell the workload what has become of its snapshots. They are a part of the VM's traffic;
// what is yet to be told stands in the journal.
type notices struct {
	vm      *VM
	running sync.Mutex // held while the workload is told something
}

// add has the workload told that a checkpoint is durable. It returns when that is noted, or
// when the VM has ended.
func (n *notices) add(digest string) {
	n.vm.mu.Lock()
	ctx := n.vm.traffic.ctx
	if n.vm.journal.Load().Spec.Notify() == nil || ctx == nil || ctx.Err() != nil {
		n.vm.mu.Unlock()
		return
	}
	tried := make(chan struct{})
	word := newNotice(noticeSnapshotted, digest)
	n.vm.traffic.watchers.Go(func() {
		_ = n.vm.journal.owe("a word that the workload is to hear", word.Add)
		close(tried)
		n.run(ctx)
	})
	n.vm.mu.Unlock()
	<-tried
}

// writeUntilDone changes the journal until that has succeeded, as long as the VM's traffic lasts; err
// is of the first try.
func (n *notices) writeUntilDone(ctx context.Context, err error, change func(*journal.Journal)) bool {
	for ; err != nil && ctx.Err() == nil; err = n.vm.write(change) {
		n.vm.log.Error("note what the workload hears; it is tried again", "error", err)
		retry.Sleep(ctx, resumeRetry)
	}
	return err == nil
}

// run has the workload hear what it has not heard yet, as a part of the VM's traffic: what stops that ends no command,
// and the caller that lets it flow again waits for the same one.
func (n *notices) run(ctx context.Context) {
	n.running.Lock()
	defer n.running.Unlock()
	for ctx.Err() == nil {
		all := n.vm.journal.Load().Notices
		if len(all) == 0 {
			return
		}
		if n.vm.pausedByClient() || n.vm.guest() == nil { // which an adopted VM may have yet to meet
			retry.Sleep(ctx, retryWait)
			continue
		}
		n.runOne(ctx, all[0])
	}
}

// pausedByClient reports whether containerd's client has paused the VM.
func (vm *VM) pausedByClient() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.state == Pausing || vm.state == Paused || vm.state == Resuming
}

// runOne runs one command. However it ends, it fails nothing.
func (n *notices) runOne(ctx context.Context, w journal.Notice) {
	bound := time.Duration(n.vm.host.Config.Timeouts.Notify)
	soon, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	status, err := n.vm.owner.command(soon, w.ID, append(n.vm.spec().Notify(), w.Word, w.Digest))
	late := err != nil && soon.Err() != nil
	switch {
	case ctx.Err() != nil, late && n.vm.pausedByClient():
		return // it goes on, or has not begun
	case late:
		n.vm.log.Warn("the workload does not take a word in time: its command is killed", "word", w.Word, "digest", w.Digest,
			"within", bound)
	case err != nil:
		n.vm.log.Warn("tell the workload", "word", w.Word, "digest", w.Digest, "error", err)
	case status != 0:
		n.vm.log.Warn("the workload's command failed", "word", w.Word, "digest", w.Digest, "status", status)
	default:
		n.vm.log.Info("the workload was told", "word", w.Word, "digest", w.Digest)
	}
	var p *process
	if err != nil { // before nothing in the journal speaks of it any more
		p = n.vm.owner.unendedCommand(w.ID)
	}
	switch struck := n.writeUntilDone(ctx, n.vm.write(w.Remove), w.Remove); {
	case struck && p != nil:
		n.vm.owner.killCommand(p)
	case struck:
		n.vm.owner.forgetCommand(w.ID)
	case p != nil: // the word is still to be told
		n.vm.owner.orphanEnded(p)
	}
}

// noticeInterval is between two looks whether the workload has heard all.
const noticeInterval = 10 * time.Millisecond

// await waits until the workload of a VM that runs has heard all, for as long as that may take:
// the snapshot of an operation has no command in it, and a move takes none along.
func (n *notices) await(ctx context.Context) {
	waits := func() int {
		n.vm.mu.Lock()
		defer n.vm.mu.Unlock()
		if n.vm.state != Running {
			return 0
		}
		return len(n.vm.journal.Load().Notices)
	}
	left := waits()
	if left == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx,
		time.Duration(left)*(time.Duration(n.vm.host.Config.Timeouts.Notify)+guestBound))
	defer cancel()
	for ctx.Err() == nil && waits() > 0 {
		retry.Sleep(ctx, noticeInterval)
	}
}
