package turn

import (
	"context"
	"errors"
	"testing"
)

// One caller has the turn. Another one waits for it no longer than its context, and has it after the first.
func TestOneAtATime(t *testing.T) {
	turn := New()
	if err := turn.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := turn.Take(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("while another one has it: %v", err)
	}
	second := make(chan error, 1)
	go func() { second <- turn.Take(t.Context()) }()
	turn.Give()
	if err := <-second; err != nil {
		t.Errorf("after the first: %v", err)
	}
	turn.Give()
}
