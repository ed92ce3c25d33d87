package tasks

import (
	"testing"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/engine"
)

// TestClear shows that what an order has left is cleared once its task has ended. It is left alone if its task has
// not ended, may be a later one, or could not be asked about.
func TestClear(t *testing.T) {
	order := engine.Restore{Intent: record.Intent{Operation: "w", Attempt: 1, Digest: asleepIn}}
	ours := map[string]string{labelOrder: "w/1", labelNew: "true"}
	for name, c := range map[string]struct {
		status tasktypes.Status
		labels map[string]string
		gone   bool
		refuse bool
	}{
		"ended":               {tasktypes.Status_STOPPED, ours, true, false},
		"runs":                {tasktypes.Status_RUNNING, ours, false, true},
		"waits for its start": {tasktypes.Status_CREATED, ours, false, true},
		"of another order": {tasktypes.Status_STOPPED, map[string]string{labelOrder: "w/2", labelNew: "true"},
			false, false},
		"of an unknown order":   {tasktypes.Status_STOPPED, nil, false, false},
		"made before by others": {tasktypes.Status_STOPPED, map[string]string{labelOrder: "w/1"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(o *objects, client *Client, _ *fakeCNI) {
				o.made(t, taskMade, c.status, c.labels)
				err := client.Clear(t.Context(), leaver, order)
				if o.fails > 0 && errdefs.IsUnavailable(err) {
					if o.object == nil && o.task != nil {
						t.Errorf("call %d fails: a task without its container", o.fails)
					}
					err = client.Clear(t.Context(), leaver, order)
				}
				if errdefs.IsFailedPrecondition(err) != c.refuse || err != nil && !c.refuse {
					t.Errorf("call %d fails: %v", o.fails, err)
				}
				if (o.object == nil) != c.gone || c.status != tasktypes.Status_STOPPED && o.task == nil {
					t.Errorf("call %d fails: object %v, task %v", o.fails, o.object, o.task)
				}
			})
		})
	}
}
