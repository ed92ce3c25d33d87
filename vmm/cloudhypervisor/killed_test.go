//go:build kvmhost

package cloudhypervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

// TestKilled: the VMM is killed before and while it works on each call of a life. The call
// ends in time, with an error of a class if it fails, and nothing stays.
func TestKilled(t *testing.T) {
	env := realEnv(t)
	state, ram := pausedState(t, env)
	goesOn(t, env, state, ram) // else a VM that ends by itself might be taken for one that was killed
	lives := [][]step{
		{booted[0], booted[5], booted[6]}, {booted[0], booted[2]}, {booted[0], booted[3], booted[4]}, restored(state, 2)[:2],
	}
	for _, life := range lives {
		for i, s := range life {
			for _, after := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond} {
				t.Run(life[0].name+"/"+s.name+"/"+after.String(), func(t *testing.T) {
					killedAt(t, env, ram, life[:i], s, after)
				})
			}
		}
	}
}

// asRestored has a VM wait for a state, with the RAM of that state: a guest without it would end by itself.
func asRestored(t *testing.T, ram []byte) func(*vmm.Config) {
	return func(c *vmm.Config) {
		c.Incoming, c.Kernel, c.Initrd = true, "", ""
		if _, err := c.RAM.WriteAt(ram, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// goesOn fails unless a guest goes on from a state and its RAM: it says one more line.
func goesOn(t *testing.T, env vmmtest.Env, state, ram []byte) {
	t.Helper()
	env.Dir = filepath.Join(env.Dir, "g")
	if err := os.Mkdir(env.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(env.Dir)
	console := newConsole(t)
	m := startReal(t, env, func(c *vmm.Config) {
		c.Console = console
		asRestored(t, ram)(c)
	})
	if err := errors.Join(load(t, m, state), m.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	awaitTick(t, env, m, console)
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newConsole(t *testing.T) *os.File {
	t.Helper()
	console, err := os.OpenFile(filepath.Join(t.TempDir(), "console"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { console.Close() })
	return console
}

// awaitTick waits until the guest has said a line.
func awaitTick(t *testing.T, env vmmtest.Env, m *Machine, console *os.File) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), env.Limit)
	defer cancel()
	for text := []byte(nil); !bytes.Contains(text, []byte("tick ")); {
		select {
		case <-m.Done():
			t.Fatalf("the VM has ended by itself: %+v", m.Exit())
		case <-ctx.Done():
			t.Fatalf("the guest says nothing: %q", text)
		case <-time.After(10 * time.Millisecond):
		}
		var err error
		if text, err = os.ReadFile(console.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

// killedAt kills the VMM some time after a step of a life has begun.
func killedAt(t *testing.T, env vmmtest.Env, ram []byte, before []step, s step, after time.Duration) {
	env.Dir = filepath.Join(env.Dir, "k")
	if err := os.Mkdir(env.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(env.Dir)
	tap, err := env.Tap(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	cfg := vmm.Config{NICs: []vmm.NIC{{ID: "net0", Slot: env.NICSlot, MAC: "52:54:00:00:00:01", MTU: 1400, Tap: tap}}}
	m := startReal(t, env, func(c *vmm.Config) {
		c.HotDisks = true
		if len(before) == 0 && s.name == "load" || len(before) > 0 && before[0].name == "load" {
			asRestored(t, ram)(c)
		}
	})
	for _, b := range before {
		if err := b.do(t.Context(), t, m, cfg); err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
	}
	go func() {
		time.Sleep(after)
		_ = syscall.Kill(m.Process().PID, syscall.SIGKILL)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.do(ctx, t, m, cfg); err != nil && (!classed(err) || ctx.Err() != nil) {
		t.Errorf("%s: %v", s.name, err)
	}
	select {
	case <-m.Done():
	case <-ctx.Done():
		t.Fatal("its end is not noticed")
	}
	if exit := m.Exit(); exit.Clean || exit.Status != 137 {
		t.Errorf("exit: %+v", exit)
	}
	for _, name := range []string{"api.sock", "agent.sock", "events", "vmm"} {
		if _, err := os.Lstat(filepath.Join(env.Dir, "vm", name)); err == nil {
			t.Errorf("left behind: %s", name)
		}
	}
}

// pausedState is the state of a VM without devices whose guest has said a line, and its RAM.
func pausedState(t *testing.T, env vmmtest.Env) (state, ram []byte) {
	t.Helper()
	env.Dir = filepath.Join(env.Dir, "s")
	if err := os.Mkdir(env.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	console := newConsole(t)
	m := startReal(t, env, func(c *vmm.Config) { c.Console = console })
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitTick(t, env, m, console)
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	state, err := save(t, m)
	if err != nil {
		t.Fatal(err)
	}
	if ram, err = os.ReadFile(filepath.Join(env.Dir, "ram")); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	return state, ram
}

// TestOtherCPU: the state of a VM whose CPU had what this one has not is refused, and the
// same state as it was is taken.
func TestOtherCPU(t *testing.T) {
	env := realEnv(t)
	state, _ := pausedState(t, env)
	try := func(dir string, state []byte) error {
		env := env
		env.Dir = filepath.Join(env.Dir, dir)
		if err := os.Mkdir(env.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m := startReal(t, env, func(c *vmm.Config) { c.Incoming, c.Kernel, c.Initrd = true, "", "" })
		defer func() {
			if err := m.Kill(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		return load(t, m, state)
	}
	err := try("other", otherCPU(t, state))
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another CPU: got %v, want FailedPrecondition", err)
	}
	t.Log(err)
	if err := try("same", state); err != nil {
		t.Errorf("the same CPU: %v", err)
	}
}

// otherCPU gives the CPU of a state every feature of leaf 7.
func otherCPU(t *testing.T, state []byte) []byte {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(state[len(stateMagic)+8:], &tree); err != nil {
		t.Fatal(err)
	}
	data, _ := tree["snapshot_data"].(map[string]any)
	text, _ := data["state"].(string)
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		t.Fatal(err)
	}
	var leaves []map[string]any
	if err := json.Unmarshal(top["common_cpuid"], &leaves); err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, leaf := range leaves {
		if leaf["function"] == float64(7) && leaf["index"] == float64(0) {
			leaf["ebx"] = uint32(0xffffffff)
			changed++
		}
	}
	if changed == 0 {
		t.Fatalf("no leaf 7 in %d leaves", len(leaves))
	}
	again, err := json.Marshal(leaves)
	if err != nil {
		t.Fatal(err)
	}
	top["common_cpuid"] = again
	inner, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	data["state"] = string(inner)
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return frame(out)
}
