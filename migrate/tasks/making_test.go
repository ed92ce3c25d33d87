package tasks

import (
	"context"
	"errors"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/migrate/engine"
)

// Who undoes an order does not wait until its Create is through with the snapshot; another
// order's Create goes on.
func TestUndoEndsACreateUnderWay(t *testing.T) {
	client, err := containerd.New("", containerd.WithServices(containerd.WithContainerStore(&objects{})))
	if err != nil {
		t.Fatal(err)
	}
	pulls := make(chan struct{}, 1)
	c := &Client{
		containerd: client, networks: newNetworks(&config.Config{RunDir: t.TempDir()}),
		spec: func(ctx context.Context, _, _ string) (*spec.Spec, error) {
			pulls <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	order := func(attempt uint32) engine.Restore {
		return engine.Restore{Intent: record.Intent{Operation: "m", Attempt: attempt, Digest: "sha256:aa"}}
	}
	created := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() { created <- c.Create(ctx, vm, order(2)) }()
	<-pulls
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if err := c.Undo(short, vm, order(1)); !errors.Is(err, context.DeadlineExceeded) || len(created) != 0 {
		t.Fatalf("another order's: %v", err)
	}
	if err := c.Undo(ctx, vm, order(2)); err != nil {
		t.Fatal(err)
	}
	if err := <-created; !errdefs.IsAborted(err) {
		t.Errorf("the Create: %v", err)
	}
	if len(c.making.all) != 0 {
		t.Errorf("%d Creates are remembered", len(c.making.all))
	}
}
