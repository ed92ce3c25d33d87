package store

import (
	"context"
	"net/http"
	"time"
)

// RetryAfter is Retry with another first pause, around the store below the retries of s.
func RetryAfter(s Store, pause time.Duration) Store {
	if r, ok := s.(*retry); ok {
		s = r.store
	}
	return &retry{store: s, pause: pause}
}

// StatusOf is the error of an answer.
func StatusOf(code int, retryAfter string) error {
	return newStatus(&http.Response{StatusCode: code, Header: http.Header{"Retry-After": {retryAfter}}, Body: http.NoBody})
}

// SetStall changes how long a transfer of s may stand still.
func SetStall(s Store, d time.Duration) {
	for _, h := range s.(*retry).store.(*Registry).hosts {
		h.stall = d
	}
}

// NewLimiter answers what waits for a number of bytes.
func NewLimiter(rate int64) func(context.Context, int) error { return newLimiter(rate).wait }

// SetBound changes how long a call of s may take that transfers no blob.
func SetBound(s Store, d time.Duration) {
	for _, h := range s.(*retry).store.(*Registry).hosts {
		h.bound = d
	}
}

// Once is s without retries.
func Once(s Store) Store { return s.(*retry).store }
