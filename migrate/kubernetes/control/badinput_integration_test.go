//go:build integration

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/places"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// ownLease is a lease that one operator alone can see: it takes itself for the leader.
type ownLease struct {
	mu    sync.Mutex
	kind  string // of content
	bytes []byte // nil: it was not made yet
}

func (l *ownLease) answer(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resp := &http.Response{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, StatusCode: http.StatusOK, Request: req,
		Header: http.Header{}}
	if req.Method != http.MethodGet {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		l.kind, l.bytes = req.Header.Get("Content-Type"), data
	}
	kind, data := l.kind, l.bytes
	if data == nil {
		resp.StatusCode, kind = http.StatusNotFound, "application/json"
		data = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
	resp.Header.Set("Content-Type", kind)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return resp, nil
}

// Two operators drive the same VMs at once: each takes itself for the only one. Each order is carried out once, and
// no VM runs twice.
func TestTwoOperatorsWithoutALease(t *testing.T) {
	w := newWorld(t)
	var writes atomic.Int64
	second := w.start(&ownLease{})
	t.Cleanup(func() {
		second.stop()
		<-second.ended
		writes.Store(second.writes.Load())
		if writes.Load() == 0 {
			t.Error("the second operator wrote nothing")
		}
	})
	for i := range 3 {
		w.lives(fmt.Sprint("both-", i))
	}
}

// legs are what a VM does while it is deleted.
var legs = []struct {
	name, first, wish string // what it does before, and then
	asleep            bool
}{
	{name: "hibernate", wish: `"operatingMode":"Hibernated"`, asleep: true},
	{name: "wake", first: `"operatingMode":"Hibernated"`, wish: `"operatingMode":"Running"`},
	{name: "move", wish: `"nodeName":"c"`},
}

// A VM is deleted before each second write of the operator, while it hibernates, wakes or moves. Its pods and its
// record go, and it runs nowhere.
func TestDeletedAtItsWrites(t *testing.T) {
	w := newWorld(t)
	for _, l := range legs {
		writes := 1
		for ; w.deletedAt(fmt.Sprintf("%s-%d", l.name, writes), writes, l.first, l.wish, l.asleep); writes += 2 {
		}
		if writes < 9 {
			t.Errorf("%s: the operator made fewer than %d writes", l.name, writes)
		}
	}
}

// deletedAt reports whether the operator made as many writes as that until the VM had what it was to have.
func (w *world) deletedAt(name string, count int, first, wish string, asleep bool) bool {
	w.t.Helper()
	begun := time.Now()
	w.create(name)
	if first != "" {
		w.wants(name, first)
		w.until(name, "is ready for the test", func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Status.Phase == v1alpha1.VMHibernated && vm.Status.Operation == nil && len(w.pods(name)) == 0
		})
	}
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	var once sync.Once
	var seen atomic.Int64
	var deleted atomic.Bool
	remove := func() {
		if err := w.api.Delete(context.WithoutCancel(w.t.Context()), vm); err != nil {
			w.t.Errorf("delete VM %s: %v", name, err)
		}
	}
	w.mu.Lock()
	w.before = func() {
		if seen.Add(1) == int64(count) {
			once.Do(func() { remove(); deleted.Store(true) })
		}
	}
	w.mu.Unlock()
	w.wants(name, wish)
	apitest.Eventually(w.t, "VM "+name+" is deleted, or done", func() (bool, error) {
		now := &v1alpha1.VirtualMachine{}
		err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: "default", Name: name}, now)
		if deleted.Load() || err != nil {
			return deleted.Load(), err
		}
		s := now.Status
		return s.Operation == nil && s.ObservedGeneration == now.Generation &&
			(asleep && s.Phase == v1alpha1.VMHibernated || !asleep && s.Phase == v1alpha1.VMRunning && s.Generation > 1), nil
	})
	reached := true
	once.Do(func() { reached = false; remove() })
	w.mu.Lock()
	w.before = nil
	w.mu.Unlock()
	w.ended(name)
	w.t.Logf("%s: over after %.1f s", name, time.Since(begun).Seconds())
	return reached
}

// ended waits until nothing is left of a VM that was deleted.
func (w *world) ended(name string) {
	w.t.Helper()
	id := "default." + name
	apitest.Eventually(w.t, "nothing is left of VM "+name, func() (bool, error) {
		err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &v1alpha1.VirtualMachine{})
		if !store.IsAbsent(err) {
			return false, errors.Join(errors.New("its object is there"), err)
		}
		rec, err := w.records.Get(w.t.Context(), &nodev1.GetRequest{Vm: vmNamed(id)})
		if !errdefs.IsNotFound(err) {
			return false, fmt.Errorf("its record is %v: %w", rec, err)
		}
		if all := w.pods(name); len(all) > 0 {
			return false, fmt.Errorf("it has %d pods", len(all))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for node, state := range w.at[id] {
			if state != "" && state != left {
				return false, fmt.Errorf("it is %s on node %s", state, node)
			}
		}
		return true, nil
	})
}

// A move waits after its commit until the pod that the VM has come into is ready. It does not wait if the VM is being
// deleted. A VM of another uid that has its name is not that VM.
func TestNoWaitForADeletedVM(t *testing.T) {
	c := api()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "leaves", Namespace: "default",
		Finalizers: []string{"test.godwit.dev/kept"}}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	if err := c.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		vm.Finalizers = nil
		if err := c.Patch(context.WithoutCancel(t.Context()), vm, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Error(err)
		}
	})
	p := &places.Places{Cached: c, Current: operator.View{Reader: c}}
	settled := func(uid string, want bool) {
		t.Helper()
		err := p.Settled(t.Context(), &nodev1.Record{Uid: uid, Operation: &nodev1.Operation{Vm: vmNamed("default.leaves"),
			Generation: 1, Attempt: 1}})
		if (err == nil) != want {
			t.Errorf("the move of VM %s does not wait: %v, want %v", uid, err, want)
		}
	}
	settled(string(vm.UID), false)
	if err := c.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	settled(string(vm.UID), true)
	settled("another", false)
}
