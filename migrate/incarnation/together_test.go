package incarnation

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/durable"
)

func noneHeld() ([]*nodev1.Held, error) { return nil, nil }

// meanwhile is a store that answers a report late: something else happens first.
type meanwhile struct {
	nodev1.StoreService
	incarnation uint64
	first       func()
}

func (s *meanwhile) Report(context.Context, *nodev1.ReportRequest) (*nodev1.StoreState, error) {
	state := &nodev1.StoreState{Incarnation: s.incarnation}
	if first := s.first; first != nil {
		s.first = nil
		first()
	}
	return state, nil
}

// A report that is answered late takes back nothing that the node has seen since, also for a daemon that starts anew.
func TestLateAnswerTakesNothingBack(t *testing.T) {
	for name, closed := range map[string]bool{"seen": true, "seen and reported": false} {
		t.Run(name, func(t *testing.T) {
			dir, st := t.TempDir(), &meanwhile{incarnation: 6}
			r, err := NewReporter("a", dir, st, noneHeld)
			if err != nil {
				t.Fatal(err)
			}
			want := remembered{Seen: 7, Reported: 7}
			st.first = func() {
				if st.incarnation = 7; closed {
					st.incarnation, want.Reported = 6, 6
				}
				if err := r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: 7}); err != nil {
					t.Error(err)
				}
			}
			if err := r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: 6}); err != nil {
				t.Fatal(err)
			}
			again, err := NewReporter("a", dir, st, noneHeld)
			if err != nil {
				t.Fatal(err)
			}
			if r.known != want || again.known != want {
				t.Errorf("known %+v, after a restart %+v, want %+v", r.known, again.known, want)
			}
		})
	}
}

// Calls at the same time write the file one after the other. One that is not waited for any more ends.
func TestWritesOneAfterTheOther(t *testing.T) {
	was := durable.SyncDir
	t.Cleanup(func() { durable.SyncDir = was })
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int32
		durable.SyncDir = func(string) error {
			if n := writes.Add(1); n != 1 {
				t.Errorf("%d writes at once", n)
			}
			time.Sleep(time.Minute)
			writes.Add(-1)
			return nil
		}
		r, err := NewReporter("a", t.TempDir(), &meanwhile{}, noneHeld)
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint64(3) {
			go func() {
				if err := r.Heard(t.Context(), &nodev1.AnnounceResponse{Incarnation: n + 1}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Heard(ctx, &nodev1.AnnounceResponse{Incarnation: 9}); err == nil {
			t.Error("a call whose time is over has written")
		}
		time.Sleep(time.Hour)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.known.Seen != 3 {
			t.Errorf("known %+v", r.known)
		}
	})
}
