package transition_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Nothing of a source is complete without its own receipt of this operation, attempt and generation, of a VM that
// is stopped. A receipt of an earlier round does not count. The receipt is written with the owner, in one change.
func TestReceiptOfACommit(t *testing.T) {
	right := record.Receipt{Operation: "op", Attempt: 2, Generation: gen, Digest: digest, Stopped: true}
	for _, kind := range []nodev1.Kind{nodev1.Kind_KIND_HIBERNATE, nodev1.Kind_KIND_MIGRATE} {
		commit := func(receipt string) (transition.Change, error) {
			return transition.Commit(under(kind, nodev1.Phase_PHASE_SWITCHING), &nodev1.CommitRequest{
				Vm: vm, Operation: "op", Attempt: 2, Generation: gen, Owner: ownerAfter(kind), Receipt: receipt,
			}, now)
		}
		for name, wrong := range map[string]func(*record.Receipt){
			"another operation":  func(r *record.Receipt) { r.Operation = "other" },
			"an older attempt":   func(r *record.Receipt) { r.Attempt = 1 },
			"an older round":     func(r *record.Receipt) { r.Generation = gen - 1 },
			"another snapshot":   func(r *record.Receipt) { r.Digest = "sha256:bb" },
			"a VM that may run":  func(r *record.Receipt) { r.Stopped = false },
			"nothing is in it":   func(r *record.Receipt) { *r = record.Receipt{} },
			"a later generation": func(r *record.Receipt) { r.Generation = gen + 1 },
		} {
			receipt := right
			wrong(&receipt)
			if change, err := commit(receipt.String()); !errdefs.IsFailedPrecondition(err) || change.Record != nil {
				t.Errorf("%s of %s: %v, %v", name, kind, change.Record, err)
			}
		}
		if change, err := commit(""); err == nil || change.Record != nil {
			t.Errorf("%s without a receipt: %v, %v", kind, change.Record, err)
		}
		change, err := commit(right.String())
		if err != nil || change.Record.GetOperation().GetReceipt() != right.String() ||
			change.Record.GetGeneration() != gen+1 {
			t.Errorf("%s: %v, %v", kind, change.Record, err)
		}
	}
}
