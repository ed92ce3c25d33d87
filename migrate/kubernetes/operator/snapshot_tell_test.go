package operator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// guests are an engine that tells workloads, and can do nothing else.
type guests struct {
	Engine
	tell func(context.Context) error
}

func (g guests) Tell(ctx context.Context, _ Told) error { return g.tell(ctx) }

// statuses keeps what is written of a VMSnapshot.
type statuses struct {
	client.Client
	writes int
	last   *v1alpha1.VMSnapshot
	err    error
}

func (s *statuses) Status() client.SubResourceWriter { return writer{s: s} }

type writer struct {
	client.SubResourceWriter
	s *statuses
}

func (w writer) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	w.s.writes++
	w.s.last, _ = o.(*v1alpha1.VMSnapshot)
	return w.s.err
}

func told(g guests) (snapshots, *statuses, *events.FakeRecorder, decide.Snapshot) {
	all, said := &statuses{}, events.NewFakeRecorder(10)
	snap := &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap", Namespace: "ns", UID: "s1"}}
	return snapshots{base{client: all, engine: g, events: said}, "system"}, all, said, decide.Snapshot{Object: snap}
}

// Each try fails by another text. The status is written once, the event told once, and each next try comes after
// TellAgain: an error would have it come at once.
func TestTellFailsAgain(t *testing.T) {
	tries := 0
	r, all, said, o := told(guests{tell: func(context.Context) error { tries++; return fmt.Errorf("port %d", tries) }})
	for range 3 {
		got, err := r.tellWorkload(t.Context(), o, decide.Action{})
		if err != nil || got.RequeueAfter < 30*time.Second {
			t.Errorf("try %d: %+v, %v", tries, got, err)
		}
		o.Object = all.last
	}
	if tries != 3 || all.writes != 1 || len(said.Events) != 1 {
		t.Errorf("%d tries: %d writes, %d events", tries, all.writes, len(said.Events))
	}
}

// A word whose status could not be written is said again, and one that was said is not.
func TestTellIsWritten(t *testing.T) {
	r, all, said, o := told(guests{tell: func(context.Context) error { return nil }})
	all.err = errors.New("no API server")
	if got, err := r.tellWorkload(t.Context(), o, decide.Action{}); !errors.Is(err, all.err) {
		t.Errorf("not written: %+v, %v", got, err)
	}
	all.err = nil
	if got, err := r.tellWorkload(t.Context(), o, decide.Action{}); err != nil || got.RequeueAfter != 0 ||
		len(said.Events) != 0 {
		t.Errorf("written: %+v, %v, %d events", got, err, len(said.Events))
	}
}

// A guest that hangs does not keep the controller that makes snapshots: another one tells.
func TestTellIsAnother(t *testing.T) {
	r, _, _, o := told(guests{tell: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.do(ctx, o, decide.Action{Do: decide.TellWorkload}); err != nil || ctx.Err() != nil {
		t.Errorf("it waited for the guest: %v", err)
	}
}
