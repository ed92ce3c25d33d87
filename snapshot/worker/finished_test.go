package worker

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/store/storetest"
)

// A push whose worker was killed, as one is that took too long, has left what it
// finished: the next one sends the rest.
func TestGoesOnAfterAKilledPush(t *testing.T) {
	r := storetest.Start(t, &storetest.Registry{})
	job := pushJob(t, r.Config(t, "vms/uid1"))
	const size = 20 << 20
	job.Spaces[0].File, job.Spec.Memory, job.Finished = file(t, noise(size)), size, file(t, nil)
	var packs atomic.Int32
	r.Play(func(_ int, q *http.Request) (f storetest.Fault) {
		if q.Method == http.MethodPut && q.ContentLength > 1<<20 && packs.Add(1) > 1 {
			f.Stall, f.Up = true, 2
		}
		return f
	})
	killed := errors.New("killed by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		for ctx.Err() == nil { // until the first pack is told of
			if info, err := job.Finished.Stat(); err == nil && info.Size() > 10_000 && packs.Load() > 1 {
				cancel(killed)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := client().Push(ctx, job, nil); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	r.Play(nil)
	r.Take()
	receipt, err := client().Push(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sent int64
	for _, q := range r.Take() {
		sent += q.Up
	}
	if receipt.Again < 3<<20 || uint64(sent) > size-receipt.Again+1<<20 {
		t.Errorf("%d bytes are used again, and %d were sent, of %d", receipt.Again, sent, size)
	}
	fill := FillJob{Store: job.Store, Digest: receipt.Digest, Spaces: []Space{{Name: "ram0", File: file(t, nil)}},
		State: file(t, nil)}
	if err := client().Fill(t.Context(), fill, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents(t, fill.Spaces[0].File), contents(t, job.Spaces[0].File)) {
		t.Error("RAM differs after a restore")
	}
}

// Notes that are of the wake come before any failed push: what lies there is of another VM.
func TestNotesOfTheWakeKnowNoFinishedPacks(t *testing.T) {
	for _, armed := range []bool{false, true} {
		j := PushJob{Finished: file(t, []byte("old")), Tracking: &Tracking{Armed: armed}}
		f := j.finished()
		info, err := f.Stat()
		if err != nil || armed == (info.Size() > 0) {
			t.Errorf("armed %v: %d bytes, %v", armed, info.Size(), err)
		}
	}
}
