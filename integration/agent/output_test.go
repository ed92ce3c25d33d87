//go:build integration

package agent

import (
	"context"
	"log/slog"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestHeldOutput: QEMU hands on what the guest had written before a pause whenever the host reads, and changes RAM by
// that. The host's end of the channel does not read while it is held.
func TestHeldOutput(t *testing.T) {
	env := suiteEnv(t)
	err := vmmtest.HeldOutput(t.Context(), env, func(ctx context.Context, socket string) (vmmtest.Reader, error) {
		// The guest is no agent: the first call has the channel opened, and is not answered.
		agent, err := client.Connect(ctx, socket, client.Options{Log: slog.New(slog.DiscardHandler),
			First: func(ctx context.Context, a *client.Agent) error {
				ctx, cancel := context.WithTimeout(ctx, env.Still)
				defer cancel()
				_, _ = a.Info(ctx, &agentv1.InfoRequest{})
				return nil
			}})
		if err == nil {
			t.Cleanup(func() { agent.Close() })
		}
		return agent, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
