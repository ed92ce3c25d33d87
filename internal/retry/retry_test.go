package retry

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Pauses double up to the longest, and begin anew after Reset.
func TestBackoff(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 5 * time.Second}
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	if !b.Longest() {
		t.Error("the pauses still grow")
	}
	b.Reset()
	got = append(got, b.Next())
	want := []time.Duration{1, 2, 4, 5, 5, 1}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
}

// A pause ends with its context, and else at its time.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		Sleep(ctx, time.Minute)
		b := Backoff{Min: time.Minute, Max: time.Hour}
		b.Wait(t.Context())
		if took := time.Since(begun); took != time.Second+time.Minute {
			t.Errorf("both took %v, want 1m1s", took)
		}
	})
}
