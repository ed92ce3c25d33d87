package moves

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

type notes = store.Notes

// full is a store that takes no note when it is asked for the nth time.
type full struct {
	notes
	left int
}

var errFull = errors.New("full")

func (f *full) NoteNew(ctx context.Context, kind, key string, value []byte) error {
	if f.left--; f.left == 0 {
		return errFull
	}
	return f.notes.NoteNew(ctx, kind, key, value)
}

// A controller may die between a change of the records and its event. The next one tells how the move began and how
// it ended, once. The controller that settled it has the time to tell it itself (I4).
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory()
		paper, ctx := &full{notes: st}, t.Context()
		vm := &nodev1.VM{Namespace: "default", Id: "web"}
		members, err := cluster.Open(ctx, paper, false)
		if err != nil {
			t.Fatal(err)
		}
		records := controller.New(st)
		s := &Service{Records: records, Cluster: members}
		op := &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1, Source: "a", Destination: "b",
			Generation: 1}
		_, err = records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm})
		if err == nil {
			_, err = records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a"})
		}
		if err == nil {
			_, err = records.Open(ctx, &nodev1.OpenRequest{Vm: vm, Operation: op})
		}
		if err != nil {
			t.Fatal(err)
		}
		told := func(want ...string) {
			t.Helper()
			var got []string
			for _, ev := range members.Events(ctx, 0, 0) {
				if ev.GetVm().GetId() != "web" || ev.GetOperation() != "m" || ev.GetSource() != "a" || ev.GetDestination() != "b" {
					t.Errorf("told %v", ev)
				}
				got = append(got, ev.GetType())
			}
			if !slices.Equal(got, want) {
				t.Errorf("told %v, want %v", got, want)
			}
		}
		tell := func(want error) {
			t.Helper()
			if err := s.Tell(ctx); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		paper.left = 1
		tell(errFull)
		told()
		tell(nil)
		tell(nil)
		told("MigrationStarted")
		req := &nodev1.AdvanceRequest{Vm: vm, Operation: "m", Attempt: 1, Generation: 1, Phase: nodev1.Phase_PHASE_ABORTING,
			Reason: "why"}
		if _, err := records.Advance(ctx, req); err != nil {
			t.Fatal(err)
		}
		if _, err := records.Finish(ctx, &nodev1.FinishRequest{Vm: vm, Operation: "m", Attempt: 1, Generation: 1,
			Phase: nodev1.Phase_PHASE_FAILED}); err != nil {
			t.Fatal(err)
		}
		tell(nil)
		told("MigrationStarted")
		time.Sleep(tellAfter)
		paper.left = 1
		tell(errFull)
		tell(nil)
		tell(nil)
		told("MigrationStarted", "Failed")
		if last := members.Events(ctx, 1, 0); len(last) != 1 || last[0].GetReason() != "why" {
			t.Errorf("the end: %v", last)
		}
	})
}
