//go:build integration

package agent

import (
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// TestBootTime reports; it does not judge.
func TestBootTime(t *testing.T) {
	m := newMachine(t)
	m.incarnation(false)
	begin := time.Now()
	m.resume()
	m.connect()
	answer := time.Since(begin)
	info, err := m.agent.Info(t.Context(), &agentv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m.setup(nil)
	setup := time.Since(begin)
	m.init()
	t.Logf("kernel %s, agent %s: answer after %v, set up after %v, init after %v; uptime %d ms at the answer",
		info.Kernel, info.Version, answer, setup, time.Since(begin), info.UptimeMs)
	if info.BootId == "" || info.UptimeMs == 0 {
		t.Fatalf("%+v", info)
	}
}
