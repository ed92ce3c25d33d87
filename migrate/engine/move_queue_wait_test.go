package engine

import (
	"context"
	"errors"
	"testing"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// hungList are records whose store does not answer a list before its caller gives up.
type hungList struct {
	nodev1.RecordsService
	asked chan struct{}
}

func (h hungList) List(ctx context.Context, _ *nodev1.ListRequest) (*nodev1.ListResponse, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A move that waits for its place while the store hangs over the list for another one ends with its own order. It is
// called off, or its controller ends.
func TestNoMoveWaitsForTheListOfAnother(t *testing.T) {
	e := New(Parts{Records: hungList{asked: make(chan struct{})}}, Options{})
	t.Cleanup(e.Close)
	rec := &nodev1.Record{Operation: &nodev1.Operation{Id: "m", Kind: nodev1.Kind_KIND_MIGRATE, Source: "a",
		Destination: "b"}}
	first, end := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- queue(first, e, rec) }()
	<-e.Records.(hungList).asked
	second, cut := context.WithCancel(t.Context())
	cut()
	for name, step := range map[string]func() error{
		"its turn": func() error { return queue(second, e, rec) },
		"a place":  func() error { return e.placement.mayBegin(second, rec.GetOperation()) },
	} {
		if err := step(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	end()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
}
