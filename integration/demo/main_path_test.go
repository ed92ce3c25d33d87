//go:build integration

package demo

import (
	"context"
	"testing"
	"time"
)

// The main job, from ctr run to the second wake (S1-01, S2-01): on a node that never had
// the VM (S1-16), by the one restore core (S2-03), without first-boot set-up (S2-09), with
// disks and RAM of one pause (N-17); no line that the guest had written, and no number that it
// had told, is missing. S0-61 has it, and the moves of integration/move.
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
