package operator

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// keeps is an engine that gives no VM up.
type keeps struct {
	Engine
	err error
}

func (k keeps) GiveUp(context.Context, *nodev1.Record, []string) error { return k.err }

// A deleted VM that sleeps, and whose node is up and has still to clean up, waits without a word: no one has called
// the node lost. With a taint, or for another reason, that is an error with an event.
func TestNodeOfADeletedVMAnswers(t *testing.T) {
	answers := fmt.Errorf("give up: %w", ErrNodeAnswers)
	for name, test := range map[string]struct {
		fenced bool
		err    error
		waits  bool
	}{
		"it is not called lost":           {false, answers, true},
		"it is called lost":               {true, answers, false},
		"the record is another one's now": {false, errdefs.ErrFailedPrecondition, false},
	} {
		said := events.NewFakeRecorder(10)
		o := decide.VM{Fenced: test.fenced, Object: &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm"}}}
		err := base{engine: keeps{err: test.err}, events: said}.apply(t.Context(), o, decide.Action{Do: decide.OrderGiveUp})
		if waits := err == nil && len(said.Events) == 0; waits != test.waits {
			t.Errorf("%s: %v, %d events", name, err, len(said.Events))
		}
	}
}
