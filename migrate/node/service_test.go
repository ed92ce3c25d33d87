package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// records is a Records service with a fixed content. Calls it has not are nil panics, which is
// what a test of "asks nothing else" wants.
type records struct {
	nodev1.RecordsService
	list        []*nodev1.Record
	err         error
	removed     []string
	trimmed     []string
	pendingList []*nodev1.Owed
	drop        bool
	place       string // as the last Remove said
}

func (r *records) Owed(context.Context, *nodev1.OwedRequest) (*nodev1.OwedResponse, error) {
	return &nodev1.OwedResponse{Owed: r.pendingList}, nil
}

func (r *records) Trim(_ context.Context, req *nodev1.TrimRequest) (*nodev1.Record, error) {
	r.trimmed = append(r.trimmed, key(req.GetVm())+" "+req.GetDigest())
	return nil, r.err
}

func (r *records) List(context.Context, *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	return &nodev1.ListResponse{Records: r.list}, r.err
}

func (r *records) Get(_ context.Context, req *nodev1.GetRequest) (*nodev1.Record, error) {
	for _, rec := range r.list {
		if key(rec.GetVm()) == key(req.GetVm()) {
			return rec, r.err
		}
	}
	return nil, fmt.Errorf("record: %w", errdefs.ErrNotFound)
}

func (r *records) Remove(_ context.Context, req *nodev1.RemoveRequest) (*nodev1.RemoveResponse, error) {
	if !req.GetForce() {
		return nil, fmt.Errorf("remove: %w", errdefs.ErrFailedPrecondition)
	}
	r.removed, r.drop, r.place = append(r.removed, key(req.GetVm())), req.GetDropSnapshots(), req.GetRepository()
	return &nodev1.RemoveResponse{}, nil
}

type shims map[string]*machinev1.QueryResponse

func (s shims) List() ([]*nodev1.VM, error) {
	var vms []*nodev1.VM
	for id := range s {
		vms = append(vms, &nodev1.VM{Namespace: "default", Id: id})
	}
	return vms, nil
}

func (s shims) Query(_ context.Context, vm *nodev1.VM) (*machinev1.QueryResponse, error) {
	if q := s[vm.GetId()]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("shim: %w", errdefs.ErrUnavailable)
}

type snapshots struct {
	verified []string
	diffed   *nodev1.DiffRequest
	err      error
}

// cleaner is an engine of which only the cleaning is asked.
type cleaner struct {
	Engine
	cleaned []string
	err     error
}

func (c *cleaner) Clean(_ context.Context, vm *nodev1.VM) error {
	c.cleaned = append(c.cleaned, key(vm))
	return c.err
}

func (*snapshots) Inspect(context.Context, string, string) (json.RawMessage, json.RawMessage, error) {
	return json.RawMessage(`{"m":1}`), json.RawMessage(`{"c":2}`), nil
}

func (s *snapshots) Diff(_ context.Context, req *nodev1.DiffRequest) (*nodev1.DiffResponse, error) {
	s.diffed = req
	return &nodev1.DiffResponse{}, s.err
}

func (s *snapshots) Copy(_ context.Context, req *nodev1.CopyRequest) (*nodev1.CopyResponse, error) {
	return &nodev1.CopyResponse{Tag: req.GetRepository()}, s.err
}

func (s *snapshots) Verify(_ context.Context, repository, digest string) (*nodev1.VerifyResponse, error) {
	s.verified = append(s.verified, repository+"@"+digest)
	return &nodev1.VerifyResponse{Packs: 1}, s.err
}

func vm(id string) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: id} }

func statusOf(resp *nodev1.VMsResponse) map[string]string {
	got := map[string]string{}
	for _, info := range resp.GetVms() {
		got[info.GetVm().GetId()] = info.GetStatus()
	}
	return got
}

// The list shows what is under way; the record wins over the shim, except for
// the state of a VM that this node owns.
func TestVMsJoinsRecordsAndShims(t *testing.T) {
	kept := &nodev1.Kept{Node: "a", Destination: "b"}
	s := &Service{
		Config: &config.Config{Node: "a"},
		Records: &records{list: []*nodev1.Record{
			{Vm: vm("here"), Owner: &nodev1.Owner{Node: "a"}},
			{Vm: vm("asleep"), Owner: &nodev1.Owner{Digest: "sha256:1"}},
			{Vm: vm("leaving"), Owner: &nodev1.Owner{Node: "a"}, Operation: &nodev1.Operation{Kind: nodev1.Kind_KIND_HIBERNATE}},
			{Vm: vm("there"), Owner: &nodev1.Owner{Node: "b"}},
			{Vm: vm("gone")},
			{Vm: vm("lost"), Lost: "sha256:2"},
			{Vm: vm("lost-there"), Owner: &nodev1.Owner{Node: "b"}, Kept: kept},
			{Vm: vm("kept-here"), Owner: &nodev1.Owner{Node: "b"}, Kept: kept},
			{Vm: vm("lost-here"), Owner: &nodev1.Owner{Node: "a"}, Kept: &nodev1.Kept{Node: "b", Destination: "a"}},
			{Vm: vm("lost-silent"), Owner: &nodev1.Owner{Node: "b"}, Kept: kept},
			{Vm: vm("moved"), Owner: &nodev1.Owner{Node: "b"}},
			{Vm: vm("back"), Owner: &nodev1.Owner{Node: "a"}, Kept: &nodev1.Kept{Node: "a", Destination: "b", Reclaimed: true}},
			{Vm: vm("read"), Owner: &nodev1.Owner{Node: "a"}, Operation: &nodev1.Operation{Kind: nodev1.Kind_KIND_CHECKPOINT}},
		}},
		Shims: shims{
			"here": {State: "running", Memory: 1 << 20}, "leaving": {State: "paused"}, "silent": nil,
			"asleep":    {State: "stopped"},
			"kept-here": {State: "voted", Memory: 1 << 20}, "lost-here": {State: "stopped"}, "lost-silent": nil,
			"moved": {State: "voted"},
			"back":  {State: "running"}, "read": {State: "capturing"},
		},
	}
	resp, err := s.VMs(t.Context(), &nodev1.VMsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"here": "running", "asleep": "hibernated", "leaving": "hibernating", "there": "owned", "gone": "stopped",
		"lost": "lost", "silent": "unknown",
		"lost-there": "lost", "kept-here": "lost", "lost-here": "lost", "lost-silent": "lost", "moved": "owned",
		"back": "running", "read": "capturing",
	}
	if diff := cmp.Diff(want, statusOf(resp)); diff != "" {
		t.Errorf("VMs (-want +got):\n%s", diff)
	}
	for _, info := range resp.GetVms() {
		if id := info.GetVm().GetId(); info.GetStatus() == "lost" &&
			!strings.Contains(info.GetNote(), "godwit rm --force default/"+id) {
			t.Errorf("%s is lost, and its note is %q", id, info.GetNote())
		}
		if info.GetVm().GetId() == "kept-here" && info.GetMemory() != 1<<20 {
			t.Errorf("what the shim says is not there: %v", info)
		}
	}
}

// fill sets every field of m that is a scalar, or a list of them.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		var v protoreflect.Value
		f := fields.Get(i)
		switch f.Kind() {
		case protoreflect.StringKind:
			v = protoreflect.ValueOfString(string(f.Name()))
		case protoreflect.Uint64Kind:
			v = protoreflect.ValueOfUint64(uint64(f.Number()))
		case protoreflect.Uint32Kind:
			v = protoreflect.ValueOfUint32(uint32(f.Number()))
		default:
			continue
		}
		if f.IsList() {
			m.Mutable(f).List().Append(v)
			continue
		}
		m.Set(f, v)
	}
}

// A field of the list that is not the record's comes from the shim, also of a VM
// that has a record. A new field that one of the two steps forgets is empty here.
func TestAShimsFieldsReachTheList(t *testing.T) {
	q := &machinev1.QueryResponse{}
	fill(q.ProtoReflect())
	local := running(&nodev1.VMInfo{Vm: vm("x"), Note: "note"}, q)
	rec := &nodev1.Record{Vm: vm("x"), Uid: "recorded", Owner: &nodev1.Owner{Node: "a"}, Generation: 7}
	got := join(recorded(rec), local, "a").ProtoReflect()
	want := proto.CloneOf(local)
	want.Uid, want.Owner, want.Generation, want.Node = rec.GetUid(), rec.GetOwner(), rec.GetGeneration(), "a"
	if diff := cmp.Diff(want, got.Interface(), protocmp.Transform()); diff != "" {
		t.Errorf("joined (-want +got):\n%s", diff)
	}
	fields := got.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); f.Name() {
		case "operation", "cleanup_pending", "deletion", "slept_unix_nano": // the records' alone
		case "name", "image", "created_unix_nano", "pod", "containers": // containerd's
		default:
			if !got.Has(f) {
				t.Errorf("%s is empty", f.Name())
			}
		}
	}
}

// The list has what containerd knows of a VM's container, the node that had a VM last, and since when it sleeps. A
// containerd that does not answer costs the names alone, and is told.
func TestNamesInTheList(t *testing.T) {
	rec := &nodev1.Record{Vm: vm("x"), Uid: "u", Owner: &nodev1.Owner{Digest: "sha256:2"}, Home: "b",
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1", CreatedUnixNano: 1}, {Digest: "sha256:2", CreatedUnixNano: 2}}}
	for _, broken := range []error{nil, errdefs.ErrUnavailable} {
		s := &Service{Config: &config.Config{Node: "a"}, Shims: shims{}, Records: &records{list: []*nodev1.Record{rec}},
			Containers: func(context.Context) ([]*nodev1.VMInfo, error) {
				return []*nodev1.VMInfo{{Vm: vm("x"), Name: "web", Image: "i", CreatedUnixNano: 9}, {Vm: vm("other")}}, broken
			}}
		resp, err := s.VMs(t.Context(), &nodev1.VMsRequest{})
		if err != nil || len(resp.GetVms()) != 1 || (resp.GetWarning() != "") != (broken != nil) {
			t.Fatalf("%v, %v", resp, err)
		}
		if v := resp.GetVms()[0]; v.GetName() != "web" || v.GetImage() != "i" || v.GetCreatedUnixNano() != 9 ||
			v.GetNode() != "b" || v.GetSleptUnixNano() != 2 || v.GetStatus() != "hibernated" {
			t.Errorf("%v", v)
		}
	}
}

func TestVMsWithoutController(t *testing.T) {
	s := &Service{Config: &config.Config{Node: "a"}, Records: &records{err: errors.New("controller is away")},
		Shims: shims{"here": {State: "running"}}}
	resp, err := s.VMs(t.Context(), &nodev1.VMsRequest{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if got := statusOf(resp)["here"]; got != "running" || resp.GetWarning() == "" {
		t.Errorf("VMs without a controller = %q, warning %q; want the local VM and a warning", got, resp.GetWarning())
	}
}

// Without a place for snapshots, hibernate and wake are refused at once.
func TestOrdersNeedAStore(t *testing.T) {
	s := &Service{Config: &config.Config{Node: "a"}} // an engine that is asked would panic
	if _, err := s.Hibernate(t.Context(), &nodev1.HibernateRequest{Vm: vm("x")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Hibernate without a store = %v, want FailedPrecondition", err)
	}
	if _, err := s.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm("x")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Wake without a store = %v, want FailedPrecondition", err)
	}
	s.Config.Registry.Layout = "/somewhere"
	if _, err := s.Wake(t.Context(), &nodev1.WakeRequest{Vm: vm("x"), Force: true}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Wake by force without a digest = %v, want InvalidArgument", err)
	}
	if _, err := s.Hibernate(t.Context(), &nodev1.HibernateRequest{Vm: &nodev1.VM{Id: "x"}}); !errdefs.IsInvalidArgument(
		err) {
		t.Errorf("Hibernate without a namespace = %v, want InvalidArgument", err)
	}
}

// R4: the write that ends the record notes the pending deletions; one that cannot be deleted now
// is a warning.
func TestForget(t *testing.T) {
	rec := &nodev1.Record{Vm: vm("x"), Uid: "u",
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1", Repository: "r", Tag: "g1-a"}}}
	recs, eng := &records{list: []*nodev1.Record{rec}}, &cleaner{err: errors.New("403")}
	s := &Service{Config: &config.Config{Node: "n1"}, Records: recs, Engine: eng, Place: func(rec *nodev1.Record) string {
		return "r/" + rec.GetUid()
	}}
	if _, err := s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm("x")}); !errdefs.IsFailedPrecondition(err) ||
		len(eng.cleaned) != 0 {
		t.Errorf("Forget of a VM with state = %v, cleaned %v; want FailedPrecondition and nothing cleaned", err, eng.cleaned)
	}
	resp, err := s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm("x"), Force: true, KeepSnapshots: true})
	if err != nil || recs.drop || resp.GetWarning() != "" || len(eng.cleaned) != 0 {
		t.Errorf("Forget that keeps snapshots = %v, %v, owed %v, cleaned %v", resp, err, recs.drop, eng.cleaned)
	}
	resp, err = s.Forget(t.Context(), &nodev1.ForgetRequest{Vm: vm("x"), Force: true})
	if err != nil || resp.GetWarning() == "" || !recs.drop || len(eng.cleaned) != 1 || recs.place != "r/u" {
		t.Errorf("Forget with a registry that refuses = %v, warning %q, owed %v; want success with a warning", err,
			resp.GetWarning(), recs.drop)
	}
}

// The record that lists a snapshot decides whether it goes. What no record lists is not deleted,
// and a refusal of the store is a warning.
func TestDrop(t *testing.T) {
	rec := &nodev1.Record{Vm: vm("x"), Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1", Repository: "r"}}}
	recs, eng := &records{list: []*nodev1.Record{rec}}, &cleaner{err: errors.New("405")}
	s := &Service{Config: &config.Config{Node: "n1"}, Records: recs, Engine: eng}
	if _, err := s.Drop(t.Context(), &nodev1.DropRequest{Digest: "sha256:2"}); !errdefs.IsNotFound(err) ||
		len(recs.trimmed) != 0 {
		t.Errorf("Drop of an unknown digest = %v, trimmed %v", err, recs.trimmed)
	}
	resp, err := s.Drop(t.Context(), &nodev1.DropRequest{Digest: "sha256:1"})
	if err != nil || resp.GetWarning() == "" || len(recs.trimmed) != 1 || len(eng.cleaned) != 1 {
		t.Errorf("Drop = %v, %v, trimmed %v, cleaned %v", resp, err, recs.trimmed, eng.cleaned)
	}
	eng.cleaned = nil
	s.Records = &inUse{records: recs}
	if _, err := s.Drop(t.Context(), &nodev1.DropRequest{Digest: "sha256:1"}); !errdefs.IsFailedPrecondition(err) ||
		len(eng.cleaned) != 0 {
		t.Errorf("Drop of one in use = %v, cleaned %v", err, eng.cleaned)
	}
}

type inUse struct{ *records }

func (*inUse) Trim(context.Context, *nodev1.TrimRequest) (*nodev1.Record, error) {
	return nil, fmt.Errorf("trim: %w", errdefs.ErrFailedPrecondition)
}

// A pending deletion shows at its VM, also when the VM has no record any more.
func TestCleanupPendingShows(t *testing.T) {
	pendingList := func(id string) *nodev1.Owed {
		return &nodev1.Owed{Vm: vm(id), Snapshot: &nodev1.SnapshotRef{Digest: "sha256:" + id}}
	}
	s := &Service{
		Records: &records{list: []*nodev1.Record{{Vm: vm("a"), Owner: &nodev1.Owner{Node: "n"}}},
			pendingList: []*nodev1.Owed{pendingList("a"), pendingList("gone"), pendingList("gone")}},
		Shims: shims{},
	}
	resp, err := s.VMs(t.Context(), &nodev1.VMsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, v := range resp.GetVms() {
		got[v.GetVm().GetId()] = fmt.Sprint(v.GetStatus(), v.GetCleanupPending())
	}
	if diff := cmp.Diff(map[string]string{"a": "owned1", "gone": "removed2"}, got); diff != "" {
		t.Errorf("VMs (-want +got):\n%s", diff)
	}
	list, err := s.Snapshots(t.Context(), &nodev1.SnapshotsRequest{})
	if err != nil || len(list.GetSnapshots()) != 3 || !list.GetSnapshots()[0].GetOwed() {
		t.Errorf("Snapshots = %v, %v", list, err)
	}
}

func TestInspectFindsTheRepository(t *testing.T) {
	rec := &nodev1.Record{Vm: vm("x"), Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:1", Repository: "r"}}}
	s := &Service{Records: &records{list: []*nodev1.Record{rec}}, Snapshot: &snapshots{}}
	resp, err := s.Inspect(t.Context(), &nodev1.InspectRequest{Digest: "sha256:1"})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]int
	if err := json.Unmarshal(resp.GetJson(), &got); err != nil || got["manifest"]["m"] != 1 || got["config"]["c"] != 2 {
		t.Errorf("Inspect = %s, %v", resp.GetJson(), err)
	}
	if _, err := s.Inspect(t.Context(), &nodev1.InspectRequest{Digest: "sha256:2"}); !errdefs.IsNotFound(err) {
		t.Errorf("Inspect of an unknown digest = %v, want NotFound", err)
	}
	if _, err := s.Verify(t.Context(), &nodev1.VerifyRequest{Digest: "sha256:1"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Verify(t.Context(), &nodev1.VerifyRequest{Digest: "sha256:2", Repository: "other"}); err != nil {
		t.Error(err)
	}
	if _, err := s.Diff(t.Context(), &nodev1.DiffRequest{From: "sha256:1", To: "sha256:2",
		ToRepository: "other"}); err != nil {
		t.Error(err)
	}
	if d := s.Snapshot.(*snapshots).diffed; d.GetFromRepository() != "r" || d.GetToRepository() != "other" {
		t.Errorf("Diff of %v", d)
	}
	if resp, err := s.Copy(t.Context(), &nodev1.CopyRequest{Digest: "sha256:1", To: "elsewhere"}); err != nil ||
		resp.GetTag() != "r" {
		t.Errorf("Copy = %v, %v", resp, err)
	}
	if diff := cmp.Diff([]string{"r@sha256:1", "other@sha256:2"}, s.Snapshot.(*snapshots).verified); diff != "" {
		t.Errorf("verified (-want +got):\n%s", diff)
	}
}
