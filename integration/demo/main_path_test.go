//go:build integration

package demo

import (
	"context"
	"testing"
	"time"
)

// The main job, from ctr run to the second wake (S1-01, S2-01).
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
