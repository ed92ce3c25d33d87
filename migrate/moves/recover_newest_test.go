package moves

import (
	"context"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VM that went back to an older snapshot is recovered from that one: what came after it was left. One that is named
// is another matter.
func TestRecoverAfterARollback(t *testing.T) {
	c := newLost(t)
	back := &nodev1.Record{Vm: c.vm, Owner: &nodev1.Owner{Node: "a"}, Base: "sha256:d1", Spent: []string{"sha256:d1"},
		Snapshots: []*nodev1.SnapshotRef{{Digest: "sha256:d1"}, {Digest: "sha256:d2", Parent: "sha256:d1"}}}
	c.Service.Records = only{c.Records, back}
	for digest, want := range map[string]string{"": "sha256:d1", "sha256:d2": "sha256:d2"} {
		resp, err := c.Recover(t.Context(), &nodev1.RecoverRequest{Vm: c.vm, To: "b", Digest: digest})
		if err != nil || resp.GetDigest() != want {
			t.Errorf("%q: from %s, %v", digest, resp.GetDigest(), err)
		}
	}
}

// only is the records of a controller, which say one thing of each VM.
type only struct {
	nodev1.RecordsService
	rec *nodev1.Record
}

func (o only) Get(context.Context, *nodev1.GetRequest) (*nodev1.Record, error) { return o.rec, nil }
