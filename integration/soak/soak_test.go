//go:build integration

package soak

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// testSeed is a schedule of 30 steps with 12 faults, a full disk and a store that goes away among them.
const testSeed = 2789739381

// TestSoak is two minutes of one schedule, so that two runs of a commit meet the same verbs and faults. New schedules
// are for make soak. GODWIT_SOAK_SEED plays another one here.
func TestSoak(t *testing.T) {
	seed := uint64(testSeed)
	if text := os.Getenv("GODWIT_SOAK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEED=%d", seed)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Time: 2 * time.Minute, Seed: seed, VMs: 4, DayEach: 15, Pods: 1, PodEach: 7, Fast: true, Log: t.Logf}
	if err := RunTo(t.Context(), opts, filepath.Join(root, "out", "soak-test.json")); err != nil {
		t.Error(err)
	}
}
