package cli

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// hanging is a daemon that has VM web and answers nothing else until its caller has gone.
type hanging struct {
	refuser
	asked chan string // one of each call that hangs
}

// hangingMoves are its moves.
type hangingMoves struct {
	nodev1.MovesService
	asked chan string
}

func hang(ctx context.Context, asked chan string) error {
	asked <- ""
	<-ctx.Done()
	return ctx.Err()
}

func (h hanging) Hibernate(ctx context.Context, _ *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hanging) Checkpoint(ctx context.Context, _ *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hanging) VMs(ctx context.Context, _ *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hanging) Snapshots(ctx context.Context, _ *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hangingMoves) Migrate(ctx context.Context, _ *nodev1.MigrateRequest) (*nodev1.StatusResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hangingMoves) Wake(ctx context.Context, _ *nodev1.WakeOrder) (*nodev1.StatusResponse, error) {
	return nil, hang(ctx, h.asked)
}

func (h hangingMoves) Nodes(ctx context.Context, _ *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return nil, hang(ctx, h.asked)
}

// Ctrl-C ends each verb with 130 while it waits for an answer. It says that it was interrupted, and no more.
func TestInterrupted(t *testing.T) {
	for _, line := range []string{"hibernate web", "checkpoint web", "wake web", "migrate web", "ps", "nodes",
		"snapshot ls", "snapshot ls web", "exec wbe true", "logs wbe", "cp wbe:/x -", "stop wbe"} {
		asked := make(chan string, 16)
		socket := served(t, hanging{refuser{rec: &nodev1.Record{}}, asked}, hangingMoves{asked: asked})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() {
			select {
			case <-asked:
			case <-time.After(time.Minute): // the verb ends by itself, and fails the test
			}
			cancel()
		})
		var out, log strings.Builder
		args := []string{"-n", "default", "--socket", socket, "--containerd", containerdWith(t)}
		code := Run(ctx, append(args, strings.Fields(line)...), &out, &log)
		cancel()
		if text := strings.TrimSpace(log.String()); code != interrupted ||
			!strings.HasPrefix(text, "godwit: Interrupted.") || strings.Contains(text, "canceled") {
			t.Errorf("%s: exit code %d: %s", line, code, text)
		}
	}
}
