//go:build integration

package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/kubernetes/store"
	rootstore "godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// old is a record with all the history that a store keeps.
func old(b *testing.B, st *store.Store, id string) *nodev1.Record {
	b.Helper()
	rec, err := &nodev1.Record{Vm: vm(id), Uid: id, Owner: &nodev1.Owner{Node: "n1"}}, error(nil)
	for i := range rootstore.Kept {
		closed := &nodev1.Operation{Id: fmt.Sprintf("%s-%d", id, i), Vm: vm(id), Phase: nodev1.Phase_PHASE_SUCCEEDED,
			Receipt: strings.Repeat("r", 400)}
		if rec, err = st.Apply(b.Context(), vm(id), rec.GetVersion(), transition.Change{Record: rec,
			Closed: closed}); err != nil {
			b.Fatal(err)
		}
	}
	return rec
}

// times reports the median and what one in a hundred exceeds.
func times(b *testing.B, all []time.Duration, unit string) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50_ms_"+unit)
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99_ms_"+unit)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkApply is a change of a record with a full history, by writers that each have a VM.
func BenchmarkApply(b *testing.B) {
	for _, writers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			st, _ := open(b, nil)
			recs := make([]*nodev1.Record, writers)
			for w := range writers {
				recs[w] = old(b, st, fmt.Sprintf("v%d", w))
			}
			var mu sync.Mutex
			var all []time.Duration
			var wg sync.WaitGroup
			b.ResetTimer()
			for w, rec := range recs {
				wg.Go(func() {
					for range max(1, b.N/writers) {
						begun := time.Now()
						next, err := st.Apply(context.WithoutCancel(b.Context()), rec.GetVm(), rec.GetVersion(),
							transition.Change{Record: rec})
						if err != nil {
							b.Errorf("writer %d: %v", w, err)
							return
						}
						rec = next
						mu.Lock()
						all = append(all, time.Since(begun))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			times(b, all, "change")
		})
	}
}

// BenchmarkWatch is from the answer to a change until a watch tells of it. It may tell before the answer.
func BenchmarkWatch(b *testing.B) {
	st, again := open(b, nil)
	rec := old(b, st, "a")
	_, from, err := st.Revision(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	told := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() {
		done <- again().Watch(ctx, from, func(store.Event) error { told <- time.Now(); return nil })
	}()
	var all []time.Duration
	for b.Loop() {
		if rec, err = st.Apply(b.Context(), rec.GetVm(), rec.GetVersion(), transition.Change{Record: rec}); err != nil {
			b.Fatal(err)
		}
		answered := time.Now()
		all = append(all, (<-told).Sub(answered))
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		b.Error(err)
	}
	times(b, all, "after_answer")
}
