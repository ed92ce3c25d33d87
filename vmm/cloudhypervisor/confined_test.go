//go:build kvmhost

package cloudhypervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// startReal makes a VM that is killed when the test ends.
func startReal(t *testing.T, env vmmtest.Env, change func(*vmm.Config)) *Machine {
	t.Helper()
	ram, err := os.Create(filepath.Join(env.Dir, "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	if err := ram.Truncate(int64(env.Memory)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(env.Dir, "vm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := vmm.Config{
		Name: t.Name(), Dir: dir, Memory: env.Memory, VCPUs: 1, RAM: ram, Agent: filepath.Join(dir, "agent.sock"),
		Kernel: env.Kernel, Initrd: env.Initrd, Cmdline: env.Cmdline,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := env.Driver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m.(*Machine)
}

// TestConfined (N-46): no thread that runs the guest or its devices gains rights or makes
// calls beyond its filter, and files outside of the VM's directory are out of reach.
func TestConfined(t *testing.T) {
	m := startReal(t, realEnv(t), nil)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", m.Process().PID))
	if err != nil || len(threads) < 3 {
		t.Fatalf("%d threads (%v)", len(threads), err)
	}
	first := fmt.Sprintf("/proc/%[1]d/task/%[1]d/status", m.Process().PID)
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wanted := []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n"}
		if path == first {
			wanted = wanted[:1] // it does nothing but wait for the others, and has no filter
		}
		for _, want := range wanted {
			if !strings.Contains(string(status), want) {
				name, _, _ := strings.Cut(string(status), "\n")
				t.Errorf("%s is not confined: no %q", name, want)
			}
		}
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !hasLandlock() {
		t.Fatal("the kernel has no landlock: not shown")
	}
	outside := t.TempDir()
	if err := m.api.snapshot(t.Context(), outside); err == nil {
		t.Error("it writes outside of the VM's directory")
	} else if !isRefusal(err) {
		t.Error(err)
	}
	if files, _ := os.ReadDir(outside); len(files) > 0 {
		t.Errorf("it left %v", files)
	}
	state, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := m.SaveState(t.Context(), state); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
