package record

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// reach connects to the first of the addresses that answers. It tries the next one when one has
// failed, or has taken its part of the time. That one goes on meanwhile: a controller to which
// all nodes come back at once is slow. A handshake that is given up has cost it as much as one
// that is made.
func reach(ctx context.Context, addresses []string, dial func(context.Context, string) (net.Conn, error)) (net.Conn,
	error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the others; tls.Dialer keeps no context of a connection that it has made
	type result struct {
		conn net.Conn
		err  error
	}
	results, tried := make(chan result, len(addresses)), 0
	try := func() <-chan time.Time {
		address := addresses[tried]
		tried++
		go func() {
			conn, err := dial(ctx, address)
			if err != nil {
				err = fmt.Errorf("%s: %w", address, err)
			}
			results <- result{conn, err}
		}()
		if tried == len(addresses) {
			return nil
		}
		return time.After(part(ctx, len(addresses)-tried+1))
	}
	var errs []error
	for next := try(); len(errs) < len(addresses); {
		select {
		case r := <-results:
			if r.err == nil {
				go func() { // two may be made at once
					for range tried - len(errs) - 1 {
						if other := <-results; other.err == nil {
							_ = other.conn.Close()
						}
					}
				}()
				return r.conn, nil
			}
			if errs = append(errs, r.err); tried < len(addresses) {
				next = try()
			}
		case <-next:
			next = try()
		}
	}
	return nil, errors.Join(errs...)
}

// part of the time that is left, which one of n tries may take before the next one.
func part(ctx context.Context, n int) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline) / time.Duration(n)
	}
	return connectTimeout
}
