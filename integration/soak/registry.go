package soak

import (
	"context"
	"net/http"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// door puts a fault before the registry, one at a time.
func (w *world) door(what string, fault func(n int, r *http.Request) harness.Fault) (string,
	func(context.Context) error, error) {
	free, ok := w.taken.take("registry")
	if !ok {
		return "", nil, errNobody
	}
	w.Door.SetFault(fault)
	return what, func(context.Context) error { defer free(); w.Door.SetFault(nil); return nil }, nil
}

// registryPause is how late each request reaches a slow registry.
const registryPause = 2 * time.Second

func (w *world) slowRegistry(context.Context, Step) (string, func(context.Context) error, error) {
	return w.door("each request takes two seconds more", func(_ int, r *http.Request) harness.Fault {
		select {
		case <-time.After(registryPause):
		case <-r.Context().Done():
		}
		return harness.Fault{}
	})
}

// brokenRegistry fails every other request: with an error of the server's, or in its midst.
func (w *world) brokenRegistry(context.Context, Step) (string, func(context.Context) error, error) {
	return w.door("every other request fails", func(n int, _ *http.Request) harness.Fault {
		switch n % 4 {
		case 1:
			return harness.Fault{Status: http.StatusBadGateway}
		case 3:
			return harness.Fault{Cut: 1000}
		}
		return harness.Fault{}
	})
}

// refusals of a registry that has something against who asks.
var refusals = []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusUnauthorized,
	http.StatusServiceUnavailable, http.StatusInsufficientStorage}

func (w *world) refusingRegistry(_ context.Context, s Step) (string, func(context.Context) error, error) {
	status, _ := at(refusals, s.Other)
	return w.door(http.StatusText(status), func(int, *http.Request) harness.Fault { return harness.Fault{Status: status} })
}
