package tasks

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A containerd whose socket appears while it is dialled is reached; one that stays away is waited for
// as long as the caller has time.
func TestDialWaitsForTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*dialPause/2)
		defer cancel()
		if _, err := dial(ctx, "unix://"+socket); !errors.Is(err, syscall.ENOENT) || ctx.Err() == nil {
			t.Errorf("without a socket: %v, the time of the caller is over: %v", err, ctx.Err())
		}
		came := make(chan error, 1)
		go func() {
			conn, err := dial(t.Context(), "unix://"+socket)
			if err == nil {
				err = conn.Close()
			}
			came <- err
		}()
		synctest.Wait() // it has looked once, and waits
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		begun := time.Now()
		if err := <-came; err != nil || time.Since(begun) > dialPause {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}
