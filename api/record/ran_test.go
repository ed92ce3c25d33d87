package record

import (
	"slices"
	"strings"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// The nodes of a record are in the order in which its VM has run there, as long as none had it twice. A record of an
// earlier build has those that its other fields tell of.
func TestRanOn(t *testing.T) {
	for _, o := range []struct {
		ran, snapshots, home, want string
		once                       bool
	}{
		{"a", "", "a", "a", true}, {"a b c", "a b", "c", "a b c", true}, {"a b a", "", "a", "a b", false},
		{"b", "a", "b", "b a", false}, {"", "a b", "c", "a b c", false}, {"", "", "", "", true},
		{strings.TrimSpace(strings.Repeat("a b ", MostRanOn/2)), "", "", "a b", false},
	} {
		rec := &nodev1.Record{RanOn: strings.Fields(o.ran), Home: o.home}
		for _, node := range strings.Fields(o.snapshots) {
			rec.Snapshots = append(rec.Snapshots, &nodev1.SnapshotRef{Node: node})
		}
		if nodes, once := RanOn(rec); !slices.Equal(nodes, strings.Fields(o.want)) || once != o.once {
			t.Errorf("%+v: %v, %v", o, nodes, once)
		}
	}
}
