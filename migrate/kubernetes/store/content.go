package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/phases"
	"godwit.dev/godwit/migrate/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// finalizer keeps a record that somebody deletes by hand.
	finalizer = "godwit.dev/record"
	// mostBytes of an object of which a checkpoint begins.
	mostBytes = 256 << 10
	// everBytes of an object. The difference is for what has to be possible: a VM moves and sleeps, and its snapshots are
	// deleted. etcd takes 1.5 MiB.
	everBytes = 2 * mostBytes
	// endBytes of an object whose record is removed: what that has listed is owed, with more words.
	endBytes = 3 * mostBytes
	// mostOwed deletions of one VM.
	mostOwed = 512
	// mostHeld snapshots of VMs that had the name of one, of which people order one more.
	mostHeld = 512
)

// content is what an object holds.
type content struct {
	record *nodev1.Record // nil: removed
	closed []*nodev1.Operation
	owed   []*nodev1.Owed
}

func decode(o *v1alpha1.VMRecord) (c content, err error) {
	fail := func(err error) (content, error) {
		return content{}, fmt.Errorf("decode vmrecord %s: %w: %w", o.Name, err, errdefs.ErrDataLoss)
	}
	if len(o.Record) > 0 {
		c.record = &nodev1.Record{}
		if err := proto.Unmarshal(o.Record, c.record); err != nil {
			return fail(err)
		}
		if c.record.GetVm().GetNamespace() != o.Spec.VM.Namespace || c.record.GetVm().GetId() != o.Spec.VM.ID {
			return fail(fmt.Errorf("it is of VM %s/%s, and the spec names another", c.record.GetVm().GetNamespace(),
				c.record.GetVm().GetId()))
		}
		if c.record.Version == 0 {
			return fail(errors.New("the record has no version"))
		}
	}
	vm := &nodev1.VM{Namespace: o.Spec.VM.Namespace, Id: o.Spec.VM.ID}
	if name, err := objectName(vm); err != nil || name != o.Name {
		return fail(fmt.Errorf("its spec is of VM %s/%s, which has another name", o.Spec.VM.Namespace, o.Spec.VM.ID))
	}
	for _, data := range o.Closed {
		op := &nodev1.Operation{}
		if err := proto.Unmarshal(data, op); err != nil {
			return fail(err)
		}
		c.closed = append(c.closed, op)
	}
	for _, data := range o.Owed {
		owed := &nodev1.Owed{}
		if err := proto.Unmarshal(data, owed); err != nil {
			return fail(err)
		}
		c.owed = append(c.owed, owed)
	}
	if what := c.missing(o); what != "" {
		return fail(fmt.Errorf("it has lost %s: an older schema is installed, or somebody has edited it (kubectl apply "+
			"the schemas of this build, and no others)", what))
	}
	return c, nil
}

// missing says what an object has lost of what was written; empty: nothing. An API server with the schema of an older
// build leaves fields away that this does not have, and never labels and finalizers.
func (c content) missing(o *v1alpha1.VMRecord) string {
	has := map[string]bool{}
	for _, op := range append(slices.Clone(c.closed), c.record.GetOperation()) {
		has[operationLabel(op.GetId())] = true
	}
	owed, owes := o.Labels[owes]
	switch {
	case c.record == nil && (owed == owedToo || o.Summary != v1alpha1.VMRecordSummary{}):
		return "its record"
	case owes && len(c.owed) == 0:
		return "its deletions"
	case c.isEmpty() && slices.Contains(o.Finalizers, finalizer):
		return "its record"
	}
	for key := range o.Labels {
		if strings.HasPrefix(key, ofOperation) && !has[key] {
			return "the operation of label " + key
		}
	}
	return ""
}

// Record reads what an object holds: the record, nil where it was removed, and its closed operations.
func Record(o *v1alpha1.VMRecord) (*nodev1.Record, []*nodev1.Operation, error) {
	c, err := decode(o)
	return c.record, c.closed, err
}

// RecordAndOwed reads the record of an object, nil where it was removed. It also reads the deletions that are pending
// for its VM, or for one that had its name before.
func RecordAndOwed(o *v1alpha1.VMRecord) (*nodev1.Record, []*nodev1.Owed, error) {
	c, err := decode(o)
	return c.record, c.owed, err
}

// UIDs are those of the VMs that an object tells something of.
func UIDs(o *v1alpha1.VMRecord) []string {
	c, err := decode(o)
	if err != nil {
		return nil
	}
	all := []string{c.record.GetUid()}
	for _, owed := range c.owed {
		all = append(all, owed.GetUid())
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(uid string) bool { return uid == "" })
}

// operation answers the one with this id, open or closed.
func (c content) operation(id string) *nodev1.Operation {
	if op := c.record.GetOperation(); op != nil && op.GetId() == id {
		return op
	}
	for _, op := range c.closed {
		if op.GetId() == id {
			return op
		}
	}
	return nil
}

// after is the content when a change is made.
func (c content) after(change transition.Change) content {
	next := content{record: change.Record, owed: slices.Clone(c.owed)}
	for _, o := range change.PendingDeletions {
		next.owed = slices.DeleteFunc(next.owed, func(old *nodev1.Owed) bool { return same(old, o) })
		next.owed = append(next.owed, o)
	}
	if change.Record == nil {
		return next
	}
	next.closed = c.closed
	if closed := change.Closed; closed != nil {
		next.closed = append(slices.DeleteFunc(slices.Clone(c.closed), func(old *nodev1.Operation) bool {
			return old.GetId() == closed.GetId()
		}), closed)
		next.closed = next.closed[max(0, len(next.closed)-store.Kept):]
	}
	return next
}

func (c content) isEmpty() bool { return c.record == nil && len(c.owed) == 0 }

// same reports whether two deletions are of one snapshot.
func same(a, b *nodev1.Owed) bool { return place(a) == place(b) }

// place orders deletions, and names what is deleted.
func place(o *nodev1.Owed) string {
	return key(o.GetVm()) + "\x00" + o.GetSnapshot().GetRepository() + "\x00" + o.GetSnapshot().GetDigest()
}

// write fills an object with content. What is in addition to godwit's own labels, annotations and finalizers stays.
func (c content) write(o *v1alpha1.VMRecord) (err error) {
	o.Record, o.Closed, o.Owed, o.Summary = nil, nil, nil, v1alpha1.VMRecordSummary{}
	if c.record != nil {
		if o.Record, err = proto.Marshal(c.record); err != nil {
			return fmt.Errorf("encode record: %w", err)
		}
		o.Summary = summary(c.record)
	}
	for _, op := range c.closed {
		data, err := proto.Marshal(op)
		if err != nil {
			return fmt.Errorf("encode operation %s: %w", op.GetId(), err)
		}
		o.Closed = append(o.Closed, data)
	}
	for _, owed := range c.owed {
		data, err := proto.Marshal(owed)
		if err != nil {
			return fmt.Errorf("encode deletion: %w", err)
		}
		o.Owed = append(o.Owed, data)
	}
	c.label(o)
	if c.record == nil {
		return c.bounded(o, endBytes)
	}
	return c.bounded(o, everBytes)
}

// begins refuses a checkpoint of a VM whose record has little room left for a snapshot: a refusal of its commit would
// come when it is made.
func (c content) begins(o *v1alpha1.VMRecord, before *nodev1.Operation) error {
	op := c.record.GetOperation()
	if op.GetKind() != nodev1.Kind_KIND_CHECKPOINT || before.GetId() == op.GetId() {
		return nil
	}
	if held := c.held(); held >= mostHeld && op.GetManual() {
		return fmt.Errorf("%d snapshots of VMs that had this name stay for their VMSnapshots, %d are the most: delete "+
			"VMSnapshots: %w", held, mostHeld, errdefs.ErrResourceExhausted)
	}
	return c.bounded(o, mostBytes)
}

// bounded refuses more than an object should hold.
func (c content) bounded(o *v1alpha1.VMRecord, most int) error {
	size := len(o.Record)
	for _, data := range append(slices.Clone(o.Closed), o.Owed...) {
		size += len(data)
	}
	if size > most {
		return fmt.Errorf("the record has %d snapshots, %d of VMs that had its name stay for their VMSnapshots, and it "+
			"would have %d bytes, %d are the most: delete snapshots: %w", len(c.record.GetSnapshots()), c.held(), size, most,
			errdefs.ErrResourceExhausted)
	}
	if owed := len(c.owed) - c.held(); owed > mostOwed && c.record != nil {
		return fmt.Errorf("%d snapshots wait for their deletion, %d are the most: mend what keeps them: %w", owed, mostOwed,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

// held are as many snapshots as stay for their VMSnapshots. They wait for no deletion.
func (c content) held() (n int) {
	for _, o := range c.owed {
		if o.GetHold() != nil {
			n++
		}
	}
	return n
}

// label writes what the object is found by, and what keeps it.
func (c content) label(o *v1alpha1.VMRecord) {
	labels := maps.Clone(o.Labels)
	maps.DeleteFunc(labels, func(k, _ string) bool {
		return k == owes || len(k) > len(ofOperation) && k[:len(ofOperation)] == ofOperation
	})
	if labels == nil {
		labels = map[string]string{}
	}
	for _, op := range c.closed {
		labels[operationLabel(op.GetId())] = "closed"
	}
	if op := c.record.GetOperation(); op != nil {
		labels[operationLabel(op.GetId())] = "open"
	}
	switch {
	case len(c.owed) > 0 && c.record != nil:
		labels[owes] = owedToo
	case len(c.owed) > 0:
		labels[owes] = "true"
	}
	o.Labels = labels
	o.Finalizers = slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == finalizer })
	if !c.isEmpty() {
		o.Finalizers = append(o.Finalizers, finalizer)
	}
}

func summary(rec *nodev1.Record) v1alpha1.VMRecordSummary {
	owner := rec.GetOwner().GetNode()
	if owner == "" {
		owner = rec.GetOwner().GetDigest()
	}
	op := rec.GetOperation()
	return v1alpha1.VMRecordSummary{UID: rec.GetUid(), Owner: owner, Generation: int64(rec.GetGeneration()),
		Operation: op.GetId(), Kind: phases.Kinds[op.GetKind()], Phase: phases.Records[op.GetPhase()]}
}
