//go:build integration

package soak

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// TestSoak is two minutes of a schedule that is new each time: GODWIT_SOAK_SEED plays one again.
func TestSoak(t *testing.T) {
	seed := rand.Uint64N(1 << 32)
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
