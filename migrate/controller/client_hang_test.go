package controller_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A controller may take connections and never answer. It may hang, or its host may be gone at the other end of a
// connection that was made before. It costs one call: the next one reaches another controller.
func TestMuteController(t *testing.T) {
	first := serveRemote(t)
	heard, mute := mute(t, first.identity(t, "mute", true))
	c := record.Remote([]string{mute, first.address}, first.identity(t, "src", false).Client())
	t.Cleanup(func() { _ = c.Close() })
	for asked := false; !asked; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := c.List(ctx, &nodev1.ListRequest{})
		cancel()
		select {
		case <-heard:
			asked = true
		default:
		}
		if asked && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("asked who never answers: %v", err)
		}
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.List(ctx, &nodev1.ListRequest{}); err != nil {
			t.Fatalf("after one that never answers: %v", err)
		}
	}
}

// mute is a controller that never answers; heard tells of a question.
func mute(t *testing.T, id *pki.Identity) (heard chan struct{}, address string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", id.Server(false))
	if err != nil {
		t.Fatal(err)
	}
	heard = make(chan struct{}, 1)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					select {
					case heard <- struct{}{}:
					default:
					}
				}
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return heard, l.Addr().String()
}
