//go:build integration

package demo

import (
	"context"
	"testing"
	"time"
)

// The main job, from ctr run to the second wake, on a node that never had the VM. It goes by the
// one restore core, without first-boot set-up, with disks and RAM of one pause. No line that the
// guest had written is missing, and no number that it had told. The soak has it, and the moves
// of integration/move.
func TestMainJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	result, err := Run(ctx, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Table(t.Output()); err != nil {
		t.Error(err)
	}
}
