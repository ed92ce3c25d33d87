//go:build integration

package qemu

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestConfined (N-46): QEMU is a user of its own, filtered, without rights and in its
// cgroup; root can still look at its RAM.
func TestConfined(t *testing.T) {
	env := realEnv(t, Driver{})
	ram, err := os.Create(filepath.Join(env.Dir, "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	if err := ram.Truncate(int64(env.Memory)); err != nil {
		t.Fatal(err)
	}
	if err := ram.Chown(env.User, -1); err != nil {
		t.Fatal(err)
	}
	m, err := env.Driver.Start(t.Context(), vmm.Config{
		Name: t.Name(), Dir: env.Dir, Memory: env.Memory, VCPUs: 1, RAM: ram, Agent: filepath.Join(env.Dir, "agent.sock"),
		Kernel: env.Kernel, Initrd: env.Initrd, Cmdline: env.Cmdline, Cgroup: []string{t.TempDir()}, Track: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := m.Process().PID
	if err := vmmtest.Confined(pid, env.User, nil); err != nil {
		t.Error(err)
	}
	if err := vmmtest.Observed(m.Process(), ram); err != nil {
		t.Error(err)
	}
}
