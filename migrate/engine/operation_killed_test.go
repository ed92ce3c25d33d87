package engine

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/errno"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A wake whose worker is killed each time ends after a number of tries, with growing pauses between
// them: resource exhausted, with a remedy. The snapshot owns the VM as before. A registry that is away is
// waited for as long as the operation may take.
func TestWakeWhoseWorkerIsKilled(t *testing.T) {
	for _, killed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := asleep(t)
			e := w.start("n1")
			t.Cleanup(e.Close)
			e.opts.Operation, e.opts.RetryMin, e.opts.RetryMax = DefaultOperation, DefaultRetryMin, DefaultRetryMax
			text := "registry is away"
			if killed {
				text = "restore: " + errno.WasKilled
			}
			w.broke("Create", fmt.Errorf("%s: %w", text, errdefs.ErrUnavailable))
			digest, wait := w.record().GetOwner().GetDigest(), e.opts.Operation
			if killed {
				wait = time.Minute
			}
			if err := w.wake(e, "w"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(wait)
			op := w.settle("w")
			w.check("w")
			took, tries := time.Duration(op.GetClosedUnixNano()-op.GetOpenedUnixNano()), w.count("Create")
			if op.GetPhase() != nodev1.Phase_PHASE_FAILED || w.record().GetOwner().GetDigest() != digest {
				t.Fatalf("%v, record %v", op, w.record())
			}
			if !killed {
				if took < e.opts.Operation {
					t.Errorf("a registry that is away is waited for %v", took)
				}
				return
			}
			if tries != killedTries || took > time.Minute || took < 5*time.Second {
				t.Errorf("%d tries in %v", tries, took)
			}
			if class := record.ClassOf(op.GetClass()); !errdefs.IsResourceExhausted(class) ||
				!strings.Contains(op.GetReason(), digest) || !strings.Contains(op.GetReason(), "godwit wake --on") {
				t.Errorf("%s: %s", op.GetClass(), op.GetReason())
			}
		})
	}
}
