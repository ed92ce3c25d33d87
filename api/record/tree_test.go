package record

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func drawn(all []*nodev1.SnapshotInfo) string {
	var out []string
	for _, b := range Tree(all) {
		out = append(out, strings.Repeat("|", b.Depth)+b.GetDigest())
	}
	return strings.Join(out, " ")
}

// A line of descent stays in one column; a line that was left for an older snapshot stands before the one that goes on.
func TestTree(t *testing.T) {
	snap := func(digest, parent string, at int64) *nodev1.SnapshotInfo {
		return &nodev1.SnapshotInfo{Digest: digest, Parent: parent, CreatedUnixNano: at}
	}
	for _, tt := range []struct {
		want string
		all  []*nodev1.SnapshotInfo
	}{
		{"", nil},
		{"a b c", []*nodev1.SnapshotInfo{snap("c", "b", 3), snap("a", "", 1), snap("b", "a", 2)}},
		{"a |b |c d e", []*nodev1.SnapshotInfo{snap("a", "", 1), snap("b", "a", 2), snap("c", "b", 3), snap("d", "a", 4),
			snap("e", "d", 5)}},
		{"a |d b c", []*nodev1.SnapshotInfo{snap("a", "", 1), snap("b", "a", 2), snap("c", "b", 9), snap("d", "a", 4)}},
		{"a c b", []*nodev1.SnapshotInfo{snap("a", "", 1), snap("b", "deleted", 3), snap("c", "", 2)}},
		{"a b c", []*nodev1.SnapshotInfo{snap("a", "c", 1), snap("b", "a", 2), snap("c", "b", 3)}}, // a ring
		{"a", []*nodev1.SnapshotInfo{snap("a", "a", 1)}},
	} {
		if got := drawn(tt.all); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// Whatever a record says, each snapshot is listed once, and before what descends from it if that is no ring.
func TestTreeOfAnything(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := r.IntN(40)
		all := make([]*nodev1.SnapshotInfo, n)
		for i := range all {
			all[i] = &nodev1.SnapshotInfo{Digest: fmt.Sprint(r.IntN(n)), Parent: fmt.Sprint(r.IntN(n + 3)),
				CreatedUnixNano: r.Int64N(5)}
		}
		seen := map[*nodev1.SnapshotInfo]bool{}
		for _, b := range Tree(all) {
			if seen[b.SnapshotInfo] {
				t.Fatalf("seed %d: %s is listed twice", seed, b.GetDigest())
			}
			seen[b.SnapshotInfo] = true
		}
		if len(seen) != n {
			t.Fatalf("seed %d: %d of %d are listed", seed, len(seen), n)
		}
	}
}

// A name reads as no digest and as no path.
func TestSnapshotNames(t *testing.T) {
	for _, good := range []string{"before-upgrade", "v1.2", "a_b", "G", "2026-11-25", "fg"} {
		if err := CheckSnapshotName(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "cafe", "0", "sha256:00", "a/b", "-x", ".x", "a b", "a\n", strings.Repeat("x", 65)} {
		if err := CheckSnapshotName(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
