package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func opened(t *testing.T) *Bolt {
	t.Helper()
	st, err := Open(filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func commits(t *testing.T, b *Bolt) (id int) {
	t.Helper()
	if err := b.db.View(func(tx *bolt.Tx) error { id = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}

// gathered has a commit wait until so many changes wait for the next one, and answers how many
// commits that and they took.
func gathered(t *testing.T, b *Bolt, many int, do func(i int)) int {
	t.Helper()
	before := commits(t, b)
	var wg sync.WaitGroup
	begun, goOn := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		_ = b.update(func(tx *bolt.Tx) error {
			close(begun)
			<-goOn
			return tx.Bucket(bucketNotes).Put([]byte("first"), nil)
		})
	})
	<-begun
	for i := range many {
		wg.Go(func() { do(i) })
	}
	for waiting := 0; waiting < many; {
		b.mu.Lock()
		waiting = len(b.waiting)
		b.mu.Unlock()
	}
	close(goOn)
	wg.Wait()
	return commits(t, b) - before
}

// 64 claims that come while one is being made durable are made durable by one commit.
func TestClaimsThatComeTogetherShareACommit(t *testing.T) {
	b := opened(t)
	took := gathered(t, b, 64, func(i int) {
		vm := &nodev1.VM{Namespace: "ns", Id: fmt.Sprint(i)}
		if _, err := b.Apply(t.Context(), vm, 0, transition.Change{Record: &nodev1.Record{Vm: vm}}); err != nil {
			t.Error(err)
		}
	})
	if took != 2 {
		t.Errorf("%d commits for the first claim and the 64 after it, want 2", took)
	}
}

// A change that fails in the midst of its writes leaves none of them, and the others of its commit
// are made.
func TestAChangeThatFailsMidwayLeavesNothing(t *testing.T) {
	b, broken := opened(t), errors.New("broken")
	errs := make([]error, 8)
	gathered(t, b, len(errs), func(i int) {
		errs[i] = b.update(func(tx *bolt.Tx) error {
			if err := tx.Bucket(bucketNotes).Put(fmt.Append(nil, "note", i), nil); err != nil || i%2 == 1 {
				return errors.Join(err, broken)
			}
			return nil
		})
	})
	for i, err := range errs {
		there := false
		_ = b.db.View(func(tx *bolt.Tx) error {
			there = tx.Bucket(bucketNotes).Get(fmt.Append(nil, "note", i)) != nil
			return nil
		})
		if fails := i%2 == 1; fails != errors.Is(err, broken) || fails == there {
			t.Errorf("change %d: %v, written: %t", i, err, there)
		}
	}
}

// What is refused costs no commit.
func TestRefusalsCostNoCommit(t *testing.T) {
	b := opened(t)
	vm := &nodev1.VM{Namespace: "ns", Id: "a"}
	before := commits(t, b)
	if _, err := b.Apply(t.Context(), vm, 7, transition.Change{Record: &nodev1.Record{Vm: vm}}); !refused(err) {
		t.Error(err)
	}
	if took := commits(t, b) - before; took != 0 {
		t.Errorf("%d commits", took)
	}
}

// A store that a build before has written to, which keeps no index, is indexed anew when it is
// opened. A store that only this build has written to is not.
func TestAnIndexThatABuildBeforeWrotePastIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	st, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	vm := &nodev1.VM{Namespace: "ns", Id: "a"}
	owned := func(node string) *nodev1.Record {
		return &nodev1.Record{Vm: vm, Uid: "u", Owner: &nodev1.Owner{Node: node}}
	}
	if _, err := st.Apply(t.Context(), vm, 0, transition.Change{Record: owned("n1")}); err != nil {
		t.Fatal(err)
	}
	reopen := func() {
		t.Helper()
		_ = st.Close()
		if st, err = Open(path); err != nil {
			t.Fatal(err)
		}
	}
	find := func(node string) int {
		t.Helper()
		all, err := st.Find(t.Context(), Which{Node: node})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Records)
	}
	// An entry of nothing shows whether the index was made anew.
	mark := []byte("mark")
	_ = st.update(func(tx *bolt.Tx) error { return tx.Bucket(bucketIndex).Put(mark, nil) })
	marked := func() (there bool) {
		_ = st.db.View(func(tx *bolt.Tx) error { there = tx.Bucket(bucketIndex).Get(mark) != nil; return nil })
		return there
	}
	if reopen(); find("n1") != 1 || !marked() {
		t.Errorf("opened again: %d records of n1, index kept: %t", find("n1"), marked())
	}
	old := func(tx *bolt.Tx) error { // as the build before writes
		return errors.Join(put(tx, bucketRecords, key(vm), owned("n2")), put(tx, bucketPending, pendingKey(vm, "r", "d"),
			&nodev1.Owed{Vm: vm, Snapshot: &nodev1.SnapshotRef{Repository: "r", Digest: "d", Node: "n3"}}))
	}
	if err := st.db.Update(old); err != nil {
		t.Fatal(err)
	}
	if reopen(); find("n1") != 0 || find("n2") != 1 || marked() {
		t.Errorf("after a build before: %d records of n1, %d of n2, index kept: %t", find("n1"), find("n2"), marked())
	}
	deletions, err := st.PendingDeletions(t.Context(), WhichDeletions{Deleter: "n3"})
	if err != nil || len(deletions) != 1 {
		t.Errorf("owed: %v, %v", deletions, err)
	}
	_ = st.Close()
}
