package tasks

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A containerd whose socket appears while it is dialled is reached; one that stays away is waited for
// as long as the caller has time.
func TestDialWaitsForTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dial(ctx, "unix://"+socket); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("without a socket: %v", err)
	}
	came := make(chan error, 1)
	go func() {
		conn, err := dial(t.Context(), "unix://"+socket)
		if err == nil {
			err = conn.Close()
		}
		came <- err
	}()
	time.Sleep(dialPause / 2)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-came; err != nil {
		t.Error(err)
	}
}
