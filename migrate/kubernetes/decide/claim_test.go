package decide_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// A claim counts while it is renewed, whatever a node writes into it.
func TestClaimed(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		holder  string
		seconds int32
		renewed time.Duration // ago
		want    bool
	}{
		"held":                         {"x", 15, 3 * time.Second, true},
		"held, by a clock that is off": {"x", 15, -3 * time.Second, true},
		"held, by a clock far ahead":   {"x", 15, -20 * time.Second, true},
		"by a clock further ahead":     {"x", 15, -31 * time.Second, false},
		"not renewed":                  {"x", 15, 31 * time.Second, false},
		"released":                     {"", 1, time.Second, false},
		"renewed in ten years":         {"x", 15, -10 * year, false},
		"renewed in ten years, and lasts for ever": {"x", math.MaxInt32, -10 * year, false},
		"lasts for ever":     {"x", math.MaxInt32, time.Minute, false},
		"lasts a moment":     {"x", 1, 3 * time.Second, false},
		"lasts less than no": {"x", -5, 0, false},
	} {
		at := metav1.NewMicroTime(now.Add(-c.renewed))
		lease := &coordination.Lease{Spec: coordination.LeaseSpec{HolderIdentity: &c.holder, RenewTime: &at,
			LeaseDurationSeconds: &c.seconds}}
		if got := decide.Claimed(lease, now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if decide.Claimed(&coordination.Lease{}, now) {
		t.Error("a lease without a holder is held")
	}
}

// Only the claims of nodes that have an order of the snapshot count.
func TestNodesOfASnapshot(t *testing.T) {
	o := snapshotWorld()
	mine, another := order("vmsnap-s1"), order("vmsnap-s2")
	o.Named = &mine
	o.Named.Spec.Source.NodeName = "n1"
	another.Spec.SnapshotRef.UID, another.Spec.Source.NodeName = "s2", "n2"
	o.Labelled = []v1alpha1.VMSnapshotContent{another}
	if got := o.Nodes(); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("the nodes are %v", got)
	}
	if got := o.Claims(); !slices.Equal(got, []string{"vmsnap-s1", "vmsnap-s1.n1"}) { // the first: of the release before
		t.Errorf("the claims are %v", got)
	}
}

// However long the name of a node is, its lease has a name of its own, which the policy can tell to be that node's.
func TestClaimOfALongName(t *testing.T) {
	const uid = "8c1b2a3e-0000-4000-8000-000000000001"
	long := strings.Repeat("a", 250)
	seen := map[string]bool{}
	for _, node := range []string{"n1", long[:209], long[:210], long[:211], long, long[:249] + "b"} {
		name := decide.ClaimName(uid, node)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || seen[name] {
			t.Errorf("node of %d characters: %s: %v", len(node), name, problems)
		}
		seen[name] = true
		if plain := decide.OrderName(uid) + "." + node; len(node) <= 209 && name != plain {
			t.Errorf("node of %d characters: %s", len(node), name)
		}
	}
	edge := strings.Repeat("a", 143) + "." + strings.Repeat("b", 100) // cut after a dot
	if problems := validation.IsDNS1123Subdomain(decide.ClaimName(uid, edge)); len(problems) > 0 {
		t.Error(problems)
	}
}
