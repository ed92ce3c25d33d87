package cloudhypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/cloudhypervisor/chtest"
)

// step is something that is done with a VM, and how many calls it is.
type step struct {
	name  string
	calls int
	do    func(ctx context.Context, t *testing.T, m *Machine, cfg vmm.Config) error
}

// booted is a life from the boot on; restored one from a saved state on. Of both the
// order is that of the calls.
var booted = []step{
	{"resume", 2, func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.Config) error { return m.Resume(ctx) }},
	{"remove NIC", 3, func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.Config) error {
		return m.RemoveNIC(ctx, "net0")
	}},
	{"add NIC", 1, func(ctx context.Context, _ *testing.T, m *Machine, cfg vmm.Config) error {
		return m.AddNIC(ctx, cfg.NICs[0])
	}},
	{"add disk", 1, func(ctx context.Context, t *testing.T, m *Machine, _ vmm.Config) error {
		disk := hotDisk(t)
		defer disk.File.Close()
		return m.AddDisk(ctx, disk)
	}},
	{"remove disk", 3, func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.Config) error {
		return m.RemoveDisk(ctx, "image")
	}},
	{"pause", 1, func(ctx context.Context, _ *testing.T, m *Machine, _ vmm.Config) error { return m.Pause(ctx) }},
	{"save", 1, func(ctx context.Context, t *testing.T, m *Machine, _ vmm.Config) error {
		f, err := os.Create(filepath.Join(t.TempDir(), "state"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return m.SaveState(ctx, f)
	}},
}

// restored is a life from a saved state on, which takes so many calls to load.
func restored(state []byte, calls int) []step {
	resume := booted[0]
	resume.calls = 1 // it is known to be paused
	return append([]step{{"load", calls, func(ctx context.Context, t *testing.T, m *Machine, _ vmm.Config) error {
		f, err := os.CreateTemp(t.TempDir(), "state")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(state, 0); err != nil {
			t.Fatal(err)
		}
		return m.LoadState(ctx, f)
	}}, resume}, booted[1:5]...)
}

// TestFailsAtEachCall: whatever call of a life goes wrong, in whatever way, the step that makes it ends in an error
// with a class, within its deadline. The VM can be killed, and nothing of it stays.
func TestFailsAtEachCall(t *testing.T) {
	boot := testConfig(t)
	wake := testConfig(t)
	wake.Incoming, wake.Kernel, wake.Initrd = true, "", ""
	copied := testConfig(t)
	copied.Incoming, copied.Template, copied.Kernel, copied.Initrd = true, true, "", ""
	late, noted := testConfig(t), testConfig(t) // whose RAM comes while they run, or is noted from then on
	for kind, cfg := range map[vmm.Tracking]*vmm.Config{vmm.TrackPages: &late, vmm.TrackWrites: &noted} {
		cfg.Incoming, cfg.Kernel, cfg.Initrd, cfg.Track = true, "", "", kind
		cfg.Mapped = func(context.Context) error { return nil }
	}
	devices := len(copied.Disks) + len(copied.NICs)
	for _, life := range []struct {
		name  string
		cfg   vmm.Config
		start int
		steps []step
	}{{"boot", boot, startCalls, booted}, {"restore", wake, 1, restored(saved(t), 2)},
		{"restore whose RAM comes later", late, 1, restored(saved(t), 2)},
		{"restore with notes", noted, 1, restored(saved(t), 2)},
		{"copy", copied, 1, restored(saved(t), 2+devices)}} {
		for _, how := range []string{chtest.Refuse, chtest.Unknown, chtest.Hang, chtest.Exit} {
			at := life.start
			for i, step := range life.steps {
				for n := range step.calls {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", life.name, step.name, how, n), func(t *testing.T) {
						failsAt(t, life.cfg, how, at+n, life.steps[:i], step)
					})
				}
				at += step.calls
			}
		}
	}
}

func failsAt(t *testing.T, cfg vmm.Config, how string, at int, before []step, s step) {
	f := fakeVMM(t, how, at)
	fds, goroutines := fdCount(t), runtime.NumGoroutine()
	m := startFake(t, f, cfg)
	for _, b := range before {
		if err := b.do(t.Context(), t, m, cfg); err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	if how == chtest.Hang {
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	}
	defer cancel()
	err := s.do(ctx, t, m, cfg)
	// A device that the VMM says it does not know has gone already: the tree decides.
	gone := s.name == "remove NIC" && how == chtest.Unknown
	if err == nil && !gone {
		t.Errorf("%s succeeds", s.name)
	}
	if err != nil && !classed(err) {
		t.Errorf("%s: no class: %v", s.name, err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	leftovers(t, cfg, fds, goroutines+1)
}

func classed(err error) bool {
	for _, class := range []error{errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition, errdefs.ErrInvalidArgument,
		errdefs.ErrNotFound, errdefs.ErrInternal, errdefs.ErrDataLoss, context.DeadlineExceeded} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// TestGates (issue 5, 2): every field that has a version is refused by the one before it,
// by name, and goes to its own.
func TestGates(t *testing.T) {
	defs, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	gated := 0
	for name, def := range defs {
		for field, p := range def.Properties {
			if p.Since == 0 {
				continue
			}
			gated++
			tree := map[string]any{field: "x"}
			old := apiSchema{definitions: defs, major: p.Since - 1}.check(name, "", tree)
			if !errdefs.IsFailedPrecondition(old) || !strings.Contains(old.Error(), field) {
				t.Errorf("%s.%s on version %d: %v", name, field, p.Since-1, old)
			}
			if err := (apiSchema{definitions: defs, major: p.Since}).check(name, "", tree); err != nil {
				t.Errorf("%s.%s on version %d: %v", name, field, p.Since, err)
			}
		}
	}
	if gated < 5 {
		t.Errorf("only %d fields have a version", gated)
	}
}

// TestVersions: of a later version that is as this one a VM is made; the state of another
// machine is not its business.
func TestVersions(t *testing.T) {
	for _, version := range []string{"53.0.0", "53.9.1", "54.0.0-rc1", "99.1.2"} {
		m := startFake(t, fakeVMM(t, "works", 0, "FAKE_VERSION="+version), testConfig(t))
		if err := errors.Join(m.Resume(t.Context()), m.Pause(t.Context())); err != nil {
			t.Errorf("version %s: %v", version, err)
		}
	}
	for _, version := range []string{"", "52.99.0", "5.3.0", "next", "99999999999999999999.0", "-1"} {
		if _, err := fakeVMM(t, "works", 0, "FAKE_VERSION="+version).Start(t.Context(),
			testConfig(t)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("version %q: got %v, want FailedPrecondition", version, err)
		}
	}
}

// TestStateLies: each part of what a state says of RAM is altered; none gets to the VMM.
func TestStateLies(t *testing.T) {
	const memory = 8 << 20
	good := []ramMapping{{Size: 6 << 20, Zone: ramZone}, {Size: 2 << 20, Zone: ramZone, FileOffset: 6 << 20}}
	if err := checkState(stateWith(t, nil, good...), memory); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m []ramMapping) []ramMapping{
		"nothing mapped": func([]ramMapping) []ramMapping { return nil },
		"one missing":    func(m []ramMapping) []ramMapping { return m[:1] },
		"one twice":      func(m []ramMapping) []ramMapping { return append(m, m[1]) },
		"hole":           func(m []ramMapping) []ramMapping { m[1].FileOffset += 4096; return m },
		"overlap":        func(m []ramMapping) []ramMapping { m[1].FileOffset -= 4096; return m },
		"beyond the end": func(m []ramMapping) []ramMapping { m[1].Size += 4096; return m },
		"wraps":          func(m []ramMapping) []ramMapping { m[0].Size = ^uint64(0); return m },
		"far away":       func(m []ramMapping) []ramMapping { m[1].FileOffset = ^uint64(0) - 4095; return m },
		"other zone":     func(m []ramMapping) []ramMapping { m[0].Zone = "mem0"; return m },
		"virtio-mem":     func(m []ramMapping) []ramMapping { m[1].VirtioMem = true; return m },
	} {
		if err := checkState(stateWith(t, nil, change(slices.Clone(good))...), memory); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := checkState(stateWith(t, []struct{}{{}}, good...), memory); !errdefs.IsInvalidArgument(err) {
		t.Errorf("RAM from a file of its own: %v", err)
	}
}

func stateWith(t testing.TB, ranges []struct{}, mappings ...ramMapping) []byte {
	t.Helper()
	var ram ramState
	ram.Ranges.Data, ram.Mappings = ranges, mappings
	inner, err := json.Marshal(ram)
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(map[string]any{"snapshots": map[string]any{
		"memory-manager": map[string]any{"snapshot_data": map[string]any{"state": string(inner)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzState: no state makes the check panic, or maps beyond RAM.
func FuzzState(f *testing.F) {
	f.Add(stateWith(f, nil, ramMapping{Size: 4096, Zone: ramZone}), uint64(4096))
	f.Add([]byte(`{"snapshots":{"memory-manager":{"snapshot_data":null}}}`), uint64(1))
	f.Fuzz(func(t *testing.T, state []byte, memory uint64) { _ = checkState(state, memory) })
}

// FuzzEvents: whatever the VMM reports, its reader comes to an end.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("{\n  \"timestamp\": {},\n  \"source\": \"vm\",\n  \"event\": \"booted\"}\n\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		readEvents(strings.NewReader(string(said)), func(e event) {
			if e.Event == "" {
				t.Error("an event without a name")
			}
		})
	})
}
