//go:build integration && kvmhost

package bench

import (
	"encoding/json"
	"os"
	"testing"
	"time"
)

// These print what make bench-live VMM=cloud-hypervisor collects. A step that fails fails its test; what was
// measured is printed all the same.
func TestLiveInRing(t *testing.T) {
	r, err := RunRing(t.Context(), os.Stdout, 7, 10*time.Minute)
	tell(t, r, err)
	if wrong := r.Wrong(); len(wrong) > 0 {
		t.Fatal(wrong)
	}
}

// TestGapInRing says where the time of a gap goes.
func TestGapInRing(t *testing.T) {
	r, err := RunRingGap(t.Context(), os.Stdout, 4)
	tell(t, r, err)
}

// TestVerifyInRing compares every page of moves.
func TestVerifyInRing(t *testing.T) {
	r, err := RunRingVerify(t.Context(), os.Stdout, 3)
	tell(t, r, err)
	if wrong := r.Wrong(); len(wrong) > 0 {
		t.Fatal(wrong)
	}
}

func TestStartsInRing(t *testing.T) {
	r, err := RunRingStarts(t.Context(), os.Stdout, 3)
	tell(t, r, err)
}

func tell(t *testing.T, r *Result, err error) {
	t.Helper()
	text, jerr := json.Marshal(r)
	if jerr != nil {
		t.Fatal(jerr)
	}
	if _, werr := os.Stdout.WriteString("\nBENCHLIVE " + string(text) + "\n"); werr != nil {
		t.Fatal(werr)
	}
	if err != nil {
		t.Fatal(err)
	}
}
