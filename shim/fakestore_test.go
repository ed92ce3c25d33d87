package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/worker"
)

// fakeStore holds one snapshot.
type fakeStore struct {
	*faults
	config     *snapshot.Config
	ram        uint64 // bytes of RAM that are not zero
	pushed     worker.PushJob
	inPause    []snapshot.DiskInPause
	sent       worker.SendJob
	received   worker.ReceiveJob
	resume     json.RawMessage                             // of what was sent
	spoil      func()                                      // if set, called when all is sent
	lingers    atomic.Bool                                 // who has sent the VM has its RAM mapped
	outlives   atomic.Bool                                 // and did when its file was removed
	stranger   int                                         // so many connections are not the source's
	orders     func(context.Context, worker.Arrival) error // if set, what a worker does that receives
	early      chan struct{}                               // if set, Push waits for it before the pause
	block      chan struct{}                               // and for this one in it
	noting     bool                                        // the kernel notes on after a checkpoint
	written    *stream.Written                             // of a live move
	untabled   string                                      // why that has no page table
	late       chan struct{}                               // and for this one after that of a checkpoint
	failUpload bool
	pages      chan struct{}            // if set, LazyFill waits for it
	settles    chan func()              // called when it has been told that the VM wants nothing
	lacks      string                   // for what
	fills      int                      // so many workers have brought RAM
	dead       int                      // so many of them died
	spent      bool                     // each of them dies after its last order
	takes      func(store.Config) error // LazyFill's way to the registry; nil: each one will do
}

func (s *fakeStore) wait(ctx context.Context, c chan struct{}) error {
	if c == nil {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *fakeStore) Push(ctx context.Context, j worker.PushJob, notify func(worker.Progress)) (snapshot.Receipt,
	error) {
	if err := s.wait(ctx, s.early); err != nil {
		return snapshot.Receipt{}, err
	}
	if err := s.call("push pages"); err != nil { // while the VM runs
		return snapshot.Receipt{}, err
	}
	if err := pause(ctx, j.Live); err != nil {
		return snapshot.Receipt{}, err
	}
	resume, err := j.Live.Save(ctx)
	if err != nil {
		return snapshot.Receipt{}, err
	}
	j.Resume = resume
	if err := s.wait(ctx, s.block); err != nil {
		return snapshot.Receipt{}, err
	}
	if err := s.call("push"); err != nil {
		return snapshot.Receipt{}, err
	}
	if j.Next != nil {
		notify(worker.Progress{Captured: time.Now(), Noting: s.noting})
		if err := s.wait(ctx, s.late); err != nil {
			return snapshot.Receipt{}, err
		}
		if s.failUpload {
			return snapshot.Receipt{}, errFake
		}
		if err := s.call("upload"); err != nil {
			return snapshot.Receipt{}, err
		}
	}
	s.pushed = j
	s.config = &snapshot.Config{Ref: j.Ref, Facts: j.Facts, Spec: j.Spec, Resume: json.RawMessage(j.Resume)}
	return snapshot.Receipt{Digest: "sha256:" + hexDigest, Captured: time.Now(), Durable: time.Now(), Disks: s.inPause,
		Untabled: s.untabled}, nil
}

const hexDigest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func (s *fakeStore) Open(context.Context, worker.OpenJob) (*worker.Opened, error) {
	return &worker.Opened{Config: s.config, RAM: s.ram}, s.call("open snapshot")
}

// Fill brings the read-only disks of fakeDisks, and nothing else.
func (s *fakeStore) Fill(_ context.Context, j worker.FillJob, _ func(worker.Progress)) error {
	for _, d := range j.Disks {
		content := "file"
		for _, image := range []string{"alpine", "busybox"} { // of containers of a pod
			if digest.FromString(image) == d.Digest {
				content = image
			}
		}
		if _, err := d.File.WriteString(content); err != nil {
			return err
		}
	}
	return s.call("fill")
}

// LazyFill brings nothing, and says that all is there.
func (s *fakeStore) LazyFill(ctx context.Context, j worker.LazyJob, notify func(worker.Progress)) error {
	notify(worker.Progress{Progress: snapshot.Progress{Step: "lazy fill", Done: 1 << 20, Total: 2 << 20,
		Waiting: s.lacks}})
	if _, err := j.RAM(ctx); err != nil {
		return err
	}
	go func() {
		if s.settles == nil {
			return
		}
		for told := range s.settles {
			notify(worker.Progress{Progress: snapshot.Progress{Step: "lazy fill", Settled: true}})
			told()
		}
	}()
	if err := s.wait(ctx, s.pages); err != nil {
		return err
	}
	if s.takes != nil {
		if err := s.takes(j.Store); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.fills++
	fails := s.fills <= s.dead
	s.mu.Unlock()
	if fails {
		return errFake
	}
	err := j.Whole(ctx)
	if err == nil && s.spent {
		err = errFake
	}
	return err
}

func pause(ctx context.Context, l snapshot.Live) error {
	if err := l.Prepare(ctx); err != nil {
		return err
	}
	return l.Pause(ctx)
}

// Send is a stream whose other end is ready when it says so.
func (s *fakeStore) Send(ctx context.Context, j worker.SendJob, notify func(worker.Progress)) (snapshot.Sent, error) {
	s.sent = j
	if err := s.wait(ctx, s.early); err != nil {
		return snapshot.Sent{}, err
	}
	notify(worker.Progress{Progress: snapshot.Progress{Step: "send pages", Pass: 1, Left: 4096}})
	if err := s.call("send pages"); err != nil { // while the VM runs
		return snapshot.Sent{}, err
	}
	if err := pause(ctx, j.Live); err != nil {
		return snapshot.Sent{}, err
	}
	resume, err := j.Live.Save(ctx)
	if err != nil {
		return snapshot.Sent{}, err
	}
	s.resume = resume
	if err := s.wait(ctx, s.block); err != nil {
		return snapshot.Sent{}, err
	}
	if s.spoil != nil {
		s.spoil()
	}
	j.Ended(streamDigest)
	if err := s.call("send end"); err != nil {
		return snapshot.Sent{}, err
	}
	s.lingers.Store(true)
	go func() { // it has RAM mapped until it is told to go
		<-ctx.Done()
		_, err := os.Stat(j.Spaces[0].File.Name())
		s.outlives.Store(err != nil)
		s.lingers.Store(false)
		j.Over()
	}()
	return snapshot.Sent{Digest: streamDigest, Captured: time.Now(), Ready: time.Now()}, nil
}

const streamDigest = "stream:" + hexDigest

// Receive is a stream that has come as soon as it is asked for.
func (s *fakeStore) Receive(ctx context.Context, j worker.ReceiveJob, _ func(worker.Progress)) error {
	s.received = j
	if s.stranger > 0 {
		s.stranger--
		return fmt.Errorf("handshake: %w", worker.ErrStranger)
	}
	if s.orders != nil {
		return s.orders(ctx, j.Arrival)
	}
	if err := s.call("receive"); err != nil {
		return err
	}
	if err := j.Arrival.Complete(ctx); err != nil {
		return err
	}
	if err := s.wait(ctx, s.early); err != nil {
		return err
	}
	if err := j.Arrival.Load(ctx, streamDigest, s.resume, s.written); err != nil {
		return err
	}
	return s.call("tell ready")
}
