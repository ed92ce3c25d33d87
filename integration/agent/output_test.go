//go:build integration

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/vmm/vmmtest"
)

// host is the shim's end of the channel, and the socket below it.
type host struct {
	*client.Agent
	socket net.Conn
}

// Say implements vmmtest.Reader. A VMM that stands still takes nothing: the socket is full in the end.
func (h *host) Say() error {
	const enough = 1 << 20
	err := h.socket.SetWriteDeadline(time.Now().Add(time.Second))
	if err == nil {
		_, err = h.socket.Write(make([]byte, enough))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a VMM that stands still takes what the host writes: %w", err)
	}
	return nil
}

// TestHeldOutput: QEMU hands on what the guest had written before a pause whenever the host reads, and changes RAM by
// that. The host's end of the channel does not read while it is held.
func TestHeldOutput(t *testing.T) {
	env := suiteEnv(t)
	err := vmmtest.HeldOutput(t.Context(), env, func(ctx context.Context, socket string) (vmmtest.Reader, error) {
		h := &host{}
		dial := func(ctx context.Context, path string) (_ net.Conn, err error) {
			h.socket, err = new(net.Dialer).DialContext(ctx, "unix", path)
			return h.socket, err
		}
		// The guest is no agent: the first call has the channel opened, and is not answered.
		first := func(ctx context.Context, a *client.Agent) error {
			ctx, cancel := context.WithTimeout(ctx, env.Still)
			defer cancel()
			_, _ = a.Info(ctx, &agentv1.InfoRequest{})
			return nil
		}
		agent, err := client.Connect(ctx, socket, client.Options{Log: slog.New(slog.DiscardHandler), Dial: dial,
			First: first})
		if err == nil {
			t.Cleanup(func() { agent.Close() })
		}
		h.Agent = agent
		return h, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
