package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/store/storetest"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// message is ttrpc's bound of one.
const message = 4 << 20

// large is a store whose records, and pending deletions, each take more than a message.
func large(t *testing.T) (*storetest.Memory, []*nodev1.Record) {
	t.Helper()
	st, total := storetest.NewMemory(), 0
	for i := 0; total <= 3*message/2; i++ {
		vm := &nodev1.VM{Namespace: "ns", Id: fmt.Sprintf("vm%03d", i)}
		rec := &nodev1.Record{Vm: vm, Uid: vm.GetId()}
		for n := range 100 { // a schedule that keeps as many as it may
			rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{
				Digest: fmt.Sprintf("sha256:%064d", n), Repository: "registry.example/vms/" + strings.Repeat("0", 36),
				Tag: fmt.Sprintf("g%d-%036d", n, n),
			})
		}
		var pendingList []*nodev1.Owed
		for _, ref := range rec.GetSnapshots() {
			pendingList = append(pendingList, &nodev1.Owed{Vm: vm, Uid: rec.GetUid(), Snapshot: ref})
		}
		if _, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: rec, PendingDeletions: pendingList}); err != nil {
			t.Fatal(err)
		}
		total += proto.Size(rec)
	}
	all, err := st.List(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return st, all
}

// What a fleet has in its records is more than one message takes: a node gets all of it, and
// each once, in their order; through the proxy of its own socket too.
func TestLongLists(t *testing.T) {
	st, all := large(t)
	socket := serveLocal(t, controller.New(st))
	for name, c := range map[string]nodev1.RecordsService{"controller": dial(t, socket),
		"proxy": dial(t, serveLocal(t, dial(t, socket)))} {
		got, err := c.List(t.Context(), &nodev1.ListRequest{})
		if err != nil || !slices.EqualFunc(got.GetRecords(), all, func(a, b *nodev1.Record) bool {
			return proto.Equal(a, b)
		}) {
			t.Errorf("%s: %d records of %d, or others: %v", name, len(got.GetRecords()), len(all), err)
		}
		want, _ := st.PendingDeletions(t.Context(), store.WhichDeletions{})
		pendingList, err := c.Owed(t.Context(), &nodev1.OwedRequest{})
		equal := func(a, b *nodev1.Owed) bool { return proto.Equal(a, b) }
		if err != nil || !slices.EqualFunc(pendingList.GetOwed(), want, equal) {
			t.Errorf("%s: %d owed of %d, or others: %v", name, len(pendingList.GetOwed()), len(want), err)
		}
	}
}

// A client of a build before, which knows of no parts, is told what is wrong, and its other calls
// on that connection are answered.
func TestLongListOfABuildBefore(t *testing.T) {
	st, _ := large(t)
	waits := &slow{Service: controller.New(st), asked: make(chan struct{}), answer: make(chan struct{})}
	c := dial(t, serveLocal(t, waits))
	var wg sync.WaitGroup
	defer wg.Wait()
	other := make(chan error, 1)
	wg.Go(func() {
		_, err := c.Operation(t.Context(), &nodev1.OperationRequest{Id: "none"})
		other <- err
	})
	<-waits.asked
	err := c.Do(t.Context(), func(ctx context.Context, conn *ttrpc.Client) error {
		_, err := nodev1.NewRecordsClient(conn).List(ctx, &nodev1.ListRequest{})
		return err
	})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "at most") {
		t.Errorf("all at once: %v", err)
	}
	close(waits.answer)
	if err := <-other; !errdefs.IsNotFound(err) {
		t.Errorf("another call on the connection: %v", err)
	}
}

// slow has an answer wait for another call.
type slow struct {
	*controller.Service
	asked, answer chan struct{}
	once          sync.Once
}

func (s *slow) Operation(ctx context.Context, req *nodev1.OperationRequest) (*nodev1.OperationResponse, error) {
	again := errors.New("asked again: the connection broke")
	s.once.Do(func() { again = nil; close(s.asked) })
	if again != nil {
		return nil, again
	}
	<-s.answer
	return s.Service.Operation(ctx, req)
}

// A node asks for the VMs that it has, and for those that leave it or come to it.
func TestRecordsOfANode(t *testing.T) {
	st := storetest.NewMemory()
	for id, rec := range map[string]*nodev1.Record{
		"1-of-a": {Owner: &nodev1.Owner{Node: "a"}},
		"2-moves": {Owner: &nodev1.Owner{Node: "a"}, Operation: &nodev1.Operation{Id: "m", Source: "a", Destination: "b",
			Phase: nodev1.Phase_PHASE_PENDING}},
		"3-left": {Owner: &nodev1.Owner{Digest: "d"}, Operation: &nodev1.Operation{Id: "h", Source: "a",
			Phase: nodev1.Phase_PHASE_COMMITTED}},
		"4-wakes": {Owner: &nodev1.Owner{Digest: "d"}, Operation: &nodev1.Operation{Id: "w", Destination: "b",
			Phase: nodev1.Phase_PHASE_PENDING}},
		"5-sleeps":  {Owner: &nodev1.Owner{Digest: "d"}},
		"6-nobodys": {},
	} {
		rec.Vm = &nodev1.VM{Namespace: "ns", Id: id}
		if rec.Operation != nil {
			rec.Operation.Vm = rec.GetVm()
		}
		if _, err := st.Apply(t.Context(), rec.GetVm(), 0, transition.Change{Record: rec}); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, serveLocal(t, controller.New(st)))
	for node, want := range map[string]string{"a": "1-of-a 2-moves 3-left", "b": "2-moves 4-wakes", "c": "",
		"": "1-of-a 2-moves 3-left 4-wakes 5-sleeps 6-nobodys"} {
		all, err := c.List(t.Context(), &nodev1.ListRequest{Node: node})
		var got []string
		for _, rec := range all.GetRecords() {
			got = append(got, rec.GetVm().GetId())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("of node %q: %v, %v", node, got, err)
		}
	}
}
