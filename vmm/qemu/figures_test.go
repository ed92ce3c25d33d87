//go:build integration

package qemu

import (
	"os"
	"testing"
	"time"

	"godwit.dev/godwit/vmm/vmmtest"
)

// TestFigures prints what make bench-vmm collects.
func TestFigures(t *testing.T) {
	env := realEnv(t, Driver{})
	rounds, sizes := vmmtest.Rounds()
	env.Limit = time.Duration(rounds) * 5 * time.Minute
	figures, err := vmmtest.Measure(t.Context(), env, rounds, sizes...)
	if err != nil {
		t.Fatal(err)
	}
	if err := figures.Tell(os.Stdout); err != nil {
		t.Fatal(err)
	}
}
