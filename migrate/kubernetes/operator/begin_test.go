package operator

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/pods"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// snapshotUIDs is an API server with VMSnapshots, of which it is asked for no more than the metadata.
type snapshotUIDs struct {
	client.Reader
	t     *testing.T
	all   []string
	lists int
}

func (s *snapshotUIDs) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.lists++
	l, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok || l.GroupVersionKind().Kind != "VMSnapshotList" {
		s.t.Fatalf("asked for %T of %s", list, list.GetObjectKind().GroupVersionKind())
	}
	for _, uid := range s.all {
		l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
	}
	return nil
}

// The end of a record asks for the uids of the VMSnapshots of its namespace, and passes on its own. What can have no
// VMSnapshot asks for none.
func TestHeldAreItsOwn(t *testing.T) {
	const uid = "3f0c6f0e-0000-4000-8000-000000000003"
	refs := []*nodev1.SnapshotRef{{Operation: "s1"}, {Operation: "o2"}}
	open := &nodev1.Operation{Id: "s3"}
	named := func(id string) *nodev1.VM { return &nodev1.VM{Namespace: "k8s.io", Id: id} }
	for name, test := range map[string]struct {
		rec   *nodev1.Record
		want  []string
		lists int
	}{
		"listed":          {&nodev1.Record{Vm: named("ns.vm"), Snapshots: refs}, []string{"s1"}, 1},
		"under a capture": {&nodev1.Record{Vm: named("ns.vm"), Operation: open}, []string{"s3"}, 1},
		"nothing":         {&nodev1.Record{Vm: named("ns.vm")}, nil, 0},
		"of a Sandbox": {&nodev1.Record{Vm: named(pods.SandboxRecord("ns", uid)), Uid: uid, Snapshots: refs},
			nil, 0},
	} {
		api := &snapshotUIDs{t: t, all: []string{"s0", "s1", "", "s3"}}
		got, err := base{current: View{Reader: api}}.held(t.Context(), test.rec)
		if err != nil || !slices.Equal(got, test.want) || api.lists != test.lists {
			t.Errorf("%s: %v by %d lists, %v", name, got, api.lists, err)
		}
	}
}
