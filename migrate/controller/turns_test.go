package controller

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"godwit.dev/godwit/migrate/pki"
)

// Of clients that say nothing each keeps others from a handshake for a moment only, and one that
// has its turn gives it back, however its handshake ends.
func TestMuteClientsKeepNoTurn(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Init(dir, "c0", nil); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.In(dir))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // the certificate is of now
		turns, config := newTurns(), id.Server(false)
		ctx, cancel := context.WithCancel(t.Context())
		var mute sync.WaitGroup
		for range 3 * atOnce {
			here, there := net.Pipe()
			mute.Go(func() {
				if err := turns.handshake(ctx, tls.Server(here, config)); err == nil {
					t.Error("who says nothing is known")
				}
				_ = there.Close()
			})
		}
		synctest.Wait()
		if len(turns.slots) != atOnce {
			t.Errorf("%d handshakes are under way, at most %d", len(turns.slots), atOnce)
		}
		begun := time.Now()
		here, there := net.Pipe()
		client := make(chan error, 1)
		go func() { client <- tls.Client(there, id.ClientOf("c0")).HandshakeContext(ctx) }()
		if err := turns.handshake(ctx, tls.Server(here, config)); err != nil || time.Since(begun) > 4*longTurn {
			t.Errorf("a node waits for %v: %v", time.Since(begun), err)
		}
		if err := <-client; err != nil {
			t.Error(err)
		}
		cancel()
		mute.Wait()
		synctest.Wait()
		if len(turns.slots) != 0 {
			t.Errorf("%d turns are not given back", len(turns.slots))
		}
	})
}
