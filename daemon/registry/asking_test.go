package registry

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/snapshot/store/storetest"
)

// A question for rights that the store does not answer holds up no other one for longer than its caller waits.
func TestQuestionsDoNotWaitForEachOther(t *testing.T) {
	asked := make(chan struct{}, 1)
	s := storetest.Start(t, &storetest.Registry{Script: func(_ int, q *http.Request) storetest.Fault {
		if !strings.Contains(q.URL.Path, "/doctor/") {
			return storetest.Fault{}
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return storetest.Fault{Down: 1, Stall: true}
	}})
	r := ofNode(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() { defer close(first); r.AskRights(ctx) }()
	defer func() { cancel(); <-first }()
	<-asked
	const patience = 100 * time.Millisecond
	second := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := r.Probe(ctx)
		second <- err
	}()
	select {
	case err := <-second:
		if err == nil {
			t.Error("a question without an answer has succeeded")
		}
	case <-time.After(100 * patience):
		t.Error("the second question waits for the first one")
	}
}
