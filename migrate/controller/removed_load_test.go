package controller_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// looked is a store that counts the notes which it has answered, and the searches for records.
type looked struct {
	*storetest.Memory
	notes, finds int
}

func (c *looked) Notes(ctx context.Context, kind, after string) ([]store.Note, error) {
	all, err := c.Memory.Notes(ctx, kind, after)
	c.notes += len(all)
	return all, err
}

func (c *looked) Find(ctx context.Context, which store.Which) (store.Found, error) {
	c.finds++
	return c.Memory.Find(ctx, which)
}

// Whether one record was removed is one look at the store, however many were. What a node may not ask for costs none.
func TestRemovalIsOneLook(t *testing.T) {
	c := &looked{Memory: storetest.NewMemory()}
	for n := range controller.Remembered {
		if err := c.Note(t.Context(), "removed", fmt.Sprint("uid", n), make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
	}
	records, as := controller.New(c), controller.WithPeer(t.Context(), "a")
	if _, err := records.Get(as, &nodev1.GetRequest{Vm: web, Uid: uuid.NewString()}); !errdefs.IsNotFound(err) {
		t.Errorf("one that never was: %v", err)
	}
	rec, err := records.Get(as, &nodev1.GetRequest{Vm: web, Uid: "uid7"})
	if err != nil || !rec.GetRemoved() {
		t.Errorf("one that was removed: %v, %v", rec, err)
	}
	if _, err := records.Ensure(as, &nodev1.EnsureRequest{Vm: web, Uid: uuid.NewString(), Node: "a"}); err != nil {
		t.Error(err)
	}
	if c.notes > 0 {
		t.Errorf("%d notes were read", c.notes)
	}
	c.finds = 0
	for _, req := range []*nodev1.EnsureRequest{{Uid: uuid.NewString()}, {Uid: uuid.NewString(), Node: "b"}} {
		req.Vm = &nodev1.VM{Namespace: "ns", Id: "other"}
		if _, err := records.Ensure(as, req); !errdefs.IsPermissionDenied(err) || c.finds > 0 {
			t.Errorf("%v: %v, after %d searches", req, err, c.finds)
		}
	}
}
