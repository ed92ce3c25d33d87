package worker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/store/storetest"
)

// A worker that a snapshot has taken over says that all is there, though RAM was not asked for.
func TestLazyFillIsNotBelieved(t *testing.T) {
	c := &Client{Command: []string{"/bin/sh", "-c", `read job; echo '{"filled":{}}'`}}
	job := LazyJob{RAM: func(context.Context) (*WaitingRAM, error) {
		return nil, nil
	}, Whole: func(context.Context) error { return nil }}
	if err := c.LazyFill(t.Context(), job, nil); !errdefs.IsInternal(err) {
		t.Errorf("got %v", err)
	}
}

// A snapshot is open by the time RAM is asked for, while its VMM may still be starting. What is answered reaches
// the worker, and an error ends it.
func TestLazyFillOpensFirst(t *testing.T) {
	var asked atomic.Int64
	r := storetest.Start(t, &storetest.Registry{Script: func(int, *http.Request) storetest.Fault {
		asked.Add(1)
		return storetest.Fault{}
	}})
	c, cfg := client(), r.Config(t, "vms/uid1")
	receipt, err := c.Push(t.Context(), pushJob(t, cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	lazy := func(ctx context.Context, ram func(context.Context) (*WaitingRAM, error)) error {
		asked.Store(0)
		return c.LazyFill(ctx, LazyJob{Store: cfg, Digest: receipt.Digest, Space: "ram0",
			RAM: func(ctx context.Context) (*WaitingRAM, error) {
				if asked.Load() == 0 {
					t.Error("RAM is asked for before the snapshot is open")
				}
				return ram(ctx)
			}}, nil)
	}
	t.Run("it fails", func(t *testing.T) {
		err := lazy(t.Context(), func(context.Context) (*WaitingRAM, error) {
			return nil, fmt.Errorf("no VMM: %w", errdefs.ErrFailedPrecondition)
		})
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("it does not come", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := lazy(ctx, func(ctx context.Context) (*WaitingRAM, error) {
			cancel()
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if err == nil || ctx.Err() == nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("it comes", func(t *testing.T) {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		// The worker has it, and says that it is none: nothing else tells so by this errno.
		if err := lazy(t.Context(), func(context.Context) (*WaitingRAM, error) {
			return &WaitingRAM{Fault: f}, nil
		}); err == nil || errdefs.IsInternal(err) {
			t.Errorf("got %v", err)
		} else {
			t.Log(err)
		}
		if f.Close() == nil {
			t.Error("the descriptor is still open here")
		}
	})
}
