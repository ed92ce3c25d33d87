package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// sandboxKind is read as it is served. A cluster without agent-sandbox does not know it, and has no pods of it.
var sandboxKind = schema.GroupVersionKind{Group: pods.SandboxGroup, Version: "v1beta1", Kind: "Sandbox"}

// Sandbox reads an object of agent-sandbox; nil: there is none. That the API server does not know the kind is an error.
func (v View) Sandbox(ctx context.Context, key types.NamespacedName) (*decide.Sandbox, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(sandboxKind)
	there, err := v.Get(ctx, key, o)
	if err != nil || !there {
		return nil, err
	}
	s := &decide.Sandbox{Name: o.GetName(), UID: string(o.GetUID()), Deleted: o.GetDeletionTimestamp() != nil,
		Pod: o.GetName()}
	if name := o.GetAnnotations()[pods.AnnotationSandboxPod]; name != "" {
		s.Pod = name
	}
	mode, _, merr := unstructured.NestedString(o.Object, "spec", "operatingMode")
	shutdown, _, serr := unstructured.NestedString(o.Object, "spec", "shutdownTime")
	if err := errors.Join(merr, serr); err != nil {
		return nil, fmt.Errorf("read Sandbox %s: %w: %w", key, err, errdefs.ErrDataLoss)
	}
	s.Suspended = mode == "Suspended"
	s.Restore = o.GetAnnotations()[decide.AnnotationOnNodeLoss] == string(v1alpha1.NodeLossRestore)
	if shutdown != "" {
		if s.Shutdown, err = time.Parse(time.RFC3339, shutdown); err != nil {
			return nil, fmt.Errorf("read Sandbox %s: spec.shutdownTime: %w: %w", key, err, errdefs.ErrDataLoss)
		}
	}
	return s, nil
}

// SandboxRecord reads the record of a VM whose pods a Sandbox makes, and which Sandbox it says that this is.
func (v View) SandboxRecord(ctx context.Context, id string) (rec *nodev1.Record, sandbox string, err error) {
	rec, _, sandbox, err = v.SandboxHistory(ctx, id)
	return rec, sandbox, err
}

// SandboxHistory is SandboxRecord with the operations of the VM that are closed, the oldest first.
func (v View) SandboxHistory(ctx context.Context, id string) (rec *nodev1.Record, closed []*nodev1.Operation,
	sandbox string, err error) {
	o := &v1alpha1.VMRecord{}
	there, err := v.Get(ctx, types.NamespacedName{Name: id}, o)
	if err != nil || !there {
		return nil, nil, "", err
	}
	rec, closed, err = store.Record(o)
	return rec, closed, o.Annotations[decide.AnnotationSandbox], err
}

// NoteSandbox writes down next to a record which Sandbox it is of. The record's version does not change.
func NoteSandbox(ctx context.Context, w client.Writer, id, sandbox string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		decide.AnnotationSandbox: sandbox}}})
	if err != nil {
		return fmt.Errorf("encode which Sandbox a VM is of: %w", err)
	}
	o := &v1alpha1.VMRecord{}
	o.Name = id
	if err := w.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("note Sandbox %s at VMRecord %s: %w: %w", sandbox, id, err, errdefs.ErrUnavailable)
	}
	return nil
}

// KindSandbox is of the notes that say which Sandboxes have had a record, by uid. So one that was taken away by force
// is missed, and its VM does not boot. The note ends before the record of a Sandbox that is gone.
const KindSandbox = "sandbox"

// endRound is how long after its Sandbox, or after its set, a VM that sleeps may end. Nothing tells of the end of a
// Sandbox: the operator does not watch what is not its own.
const endRound = time.Minute

// addEnds ends the records of Sandboxes that are gone, and of members of sets that are gone.
func addEnds(every time.Duration) func(ctrl.Manager, base) error {
	return func(mgr ctrl.Manager, b base) error {
		return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
					b.endRecords(ctx, mgr.GetLogger().Error)
					if n%notesRound == 0 {
						b.endNotes(ctx, mgr.GetLogger().Error)
					}
				}
			}
		}))
	}
}

// endRecords looks at each record that may have lost its Sandbox, or its set. The cache is a hint: what ends a record
// reads anew.
func (b base) endRecords(ctx context.Context, failed func(error, string, ...any)) {
	all := &v1alpha1.VMRecordList{}
	if err := b.client.List(ctx, all); err != nil {
		failed(err, "list records for Sandboxes and sets that are gone")
		return
	}
	for i := range all.Items {
		o := &all.Items[i]
		rec, owed, err := store.RecordAndOwed(o)
		if err != nil { // it ends nothing, and its VM is not looked for
			failed(err, "read a record", "vm", o.Name)
			b.events.Eventf(o, nil, corev1.EventTypeWarning, "RecordUnreadable", "Read", "%s", noteOf(err.Error()))
			continue
		}
		end, what := b.endMember, "end the record of a member of a set"
		if pods.IsSandboxRecord(o.Name) {
			end, what = b.endSandbox, "end the VM of a Sandbox"
		}
		if err := end(ctx, o, rec); err != nil && ctx.Err() == nil {
			failed(err, what, "vm", o.Name)
		}
		if err := b.endHolds(ctx, o, owed); err != nil && ctx.Err() == nil {
			failed(err, "forget what is held", "vm", o.Name)
		}
	}
}

// sandboxEnd reads what a VM's end hangs on. Without a record there is nothing to end.
func (b base) sandboxEnd(ctx context.Context, cached *v1alpha1.VMRecord) (o decide.SandboxEnd, err error) {
	o.Made, o.Now = cached.CreationTimestamp.Time, time.Now()
	if o.Record, o.Noted, err = b.current.SandboxRecord(ctx, cached.Name); err != nil || o.Record == nil {
		return o, err
	}
	if o.Noted != "" {
		vm, _ := store.NameOf(o.Record.GetVm())
		key := types.NamespacedName{Namespace: vm.Namespace, Name: o.Noted}
		if o.Sandbox, err = b.current.Sandbox(ctx, key); err != nil {
			return o, err
		}
	}
	if node := decide.InHand(o.Record); node != "" {
		o.Fenced, err = b.current.NodeFenced(ctx, node)
	}
	return o, err
}

// endSandbox ends the VM of a Sandbox that is gone. One that a node has ends there first, or with the node, when
// somebody vouches that this is lost. rec is what the cached object says.
func (b base) endSandbox(ctx context.Context, cached *v1alpha1.VMRecord, rec *nodev1.Record) error {
	if rec.GetOwner().GetNode() != "" {
		if fenced, err := b.cached.NodeFenced(ctx, decide.InHand(rec)); err != nil || !fenced {
			return nil
		}
	}
	o, err := b.sandboxEnd(ctx, cached)
	if err != nil || o.Record == nil {
		return err
	}
	next := decide.NextSandboxEnd(o)
	if next.Do == decide.RemoveRecord || next.Do == decide.OrderGiveUp {
		if err := b.records.store.Note(ctx, KindSandbox, o.Record.GetUid(), nil); err != nil {
			return err
		}
	}
	switch next.Do {
	case decide.RemoveRecord:
		err = b.remove(ctx, o.Record)
		if err == nil {
			b.events.Eventf(cached, nil, corev1.EventTypeNormal, "SandboxGone", "Remove",
				"Sandbox %s is gone: its VM ends, and its snapshots are deleted", o.Noted)
		}
		return err
	case decide.OrderGiveUp:
		if b.engine == nil {
			return nil
		}
		err = b.engine.GiveUp(ctx, o.Record, nil) // it has no VMSnapshot
		if !o.Fenced && errors.Is(err, ErrNodeAnswers) {
			return nil // no one has called it lost: it has still to clean up
		}
		if err == nil {
			b.events.Eventf(cached, nil, corev1.EventTypeWarning, "SandboxGone", "GiveUp",
				"Sandbox %s is gone, and node %s is lost: the VM ends with it, and its snapshots are deleted", o.Noted, next.Node)
		}
		return err
	case decide.OrderAbort:
		if b.engine != nil {
			return b.engine.Abort(ctx, vmOf(cached.Name), next.Operation)
		}
	}
	return nil
}
