package transition_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// became is what the records make of an operation: an order has none of it.
var became = []protoreflect.Name{
	"phase", "reason", "class", "opened_unix_nano", "closed_unix_nano", "committed_unix_nano", "started_unix_nano",
	"receipt",
	"place", "source_place",
	"outcome", "cleanup_pending", "cancelled", "note", "retarget", "wanted_mode", "attempts",
}

// What is ordered is in the record, whatever it is: Open names each field, and one that it does
// not name would never reach a shim.
func TestOrdersAreKept(t *testing.T) {
	order := &nodev1.Operation{Id: "op", Kind: nodev1.Kind_KIND_MIGRATE, Generation: gen, Source: "n1", Destination: "n2",
		Repository: "r", Mode: "live", Attempt: 1}
	t.Run("to a node", func(t *testing.T) { keepsOrder(t, order, "by_place", "wish", "prefix") })
	order = proto.CloneOf(order)
	order.Destination = ""
	t.Run("placed later", func(t *testing.T) { keepsOrder(t, order, "destination", "prefix") })
	order = proto.CloneOf(order)
	order.ByPlace, order.Wish, order.Digest = false, "", ""
	order.Kind, order.Prefix, order.Repository = nodev1.Kind_KIND_CHECKPOINT, "r.example/c", "r.example/c/u"
	t.Run("elsewhere", func(t *testing.T) { keepsOrder(t, order, "destination", "digest", "by_place", "wish") })
}

func keepsOrder(t *testing.T, order *nodev1.Operation, without ...protoreflect.Name) {
	m := order.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !m.Has(f) && !slices.Contains(became, f.Name()) && !slices.Contains(without, f.Name()) {
			set(m, f)
		}
	}
	rec := &nodev1.Record{Vm: vm, Uid: "u", Generation: gen, Owner: &nodev1.Owner{Node: "n1"}, Version: 1,
		Deletion: &nodev1.Deletion{Id: "x"}}
	change, err := transition.Open(transition.State{Record: rec}, &nodev1.OpenRequest{Vm: vm, Operation: order}, now)
	if err != nil {
		t.Fatal(err)
	}
	kept := change.Record.GetOperation().ProtoReflect()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "vm" || slices.Contains(became, f.Name()) {
			continue
		}
		if !kept.Get(f).Equal(m.Get(f)) {
			t.Errorf("%s is ordered as %v, the record has %v", f.Name(), m.Get(f), kept.Get(f))
		}
	}
}

func set(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	switch {
	case f.IsList():
		m.Mutable(f).List().Append(protoreflect.ValueOfString("x"))
	case f.Kind() == protoreflect.StringKind:
		m.Set(f, protoreflect.ValueOfString("x"))
	case f.Kind() == protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(true))
	case f.Kind() == protoreflect.Int64Kind:
		m.Set(f, protoreflect.ValueOfInt64(3))
	case f.Kind() == protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(3))
	case f.Kind() == protoreflect.Uint32Kind:
		m.Set(f, protoreflect.ValueOfUint32(3))
	}
}
