package qemu

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu/qmptest"
)

// startCalls are those of a Start: greeting, qmp_capabilities, qom-list,
// migrate-set-capabilities, migrate-set-parameters; of one that is made ahead getfd,
// migrate-incoming, query-qmp-schema and query-commands, too.
const (
	startCalls = 5
	aheadCalls = startCalls + 4
)

// leftovers compares what there was before with what there is now.
func leftovers(t *testing.T, cfg vmm.Config, fds, goroutines int) {
	t.Helper()
	for _, path := range []string{cfg.Agent, filepath.Join(cfg.Dir, "qmp.sock")} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("left behind: %s", path)
		}
	}
	eventually(t, "descriptors closed", func() bool { return fdCount(t) <= fds })
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// TestStartFailsAtEachCall shows that whatever call of a start goes wrong, in whatever
// way, no process, socket, descriptor or goroutine stays.
func TestStartFailsAtEachCall(t *testing.T) {
	for _, how := range []string{qmptest.Refuse, qmptest.Hang, qmptest.Close, qmptest.Garbage, qmptest.Exit} {
		for at := range aheadCalls {
			if how == qmptest.Refuse && at == 0 {
				continue // a greeting refuses nothing
			}
			if how == qmptest.Refuse && at >= aheadCalls-2 {
				t.Run("refuse a description", func(t *testing.T) { testRefusedDescription(t, at) })
				continue
			}
			t.Run(how, func(t *testing.T) {
				f, cfg := fakeQEMU(t, how, at), testConfig(t)
				cfg.Incoming, cfg.Ahead = true, true
				fds, goroutines := fdCount(t), runtime.NumGoroutine()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if how == qmptest.Hang {
					// The fake has begun once its pid is written; from then on any time will do.
					go func() {
						for !f.running(t) && ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(50 * time.Millisecond)
						cancel()
					}()
				}
				if _, err := f.Start(ctx, cfg); err == nil {
					t.Fatalf("call %d: Start succeeds", at)
				} else {
					t.Logf("call %d: %v", at, err)
				}
				if f.running(t) {
					t.Errorf("call %d: process is left", at)
				}
				leftovers(t, cfg, fds, goroutines+1)
			})
		}
	}
}

// Who refuses to describe its commands has no faster load, and no other fault.
func testRefusedDescription(t *testing.T, at int) {
	f, cfg := fakeQEMU(t, qmptest.Refuse, at), testConfig(t)
	cfg.Incoming, cfg.Ahead = true, true
	m, err := f.Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("call %d: %v", at, err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStartCalls keeps both numbers true: one later, no start goes wrong.
func TestStartCalls(t *testing.T) {
	for ahead, calls := range map[bool]int{false: startCalls, true: aheadCalls} {
		testStartCalls(t, ahead, calls)
	}
}

func testStartCalls(t *testing.T, ahead bool, calls int) {
	f, cfg := fakeQEMU(t, qmptest.Exit, calls), testConfig(t)
	cfg.Incoming, cfg.Ahead = true, ahead
	fds, goroutines := fdCount(t), runtime.NumGoroutine()
	m, err := f.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if p := m.Process(); p.Agent != cfg.Agent || p.Memory != cfg.Memory || len(p.NICs) != 1 || p.NICs[0] != "net0" {
		t.Errorf("Process: %+v", p)
	}
	// The next call makes it exit.
	if err := m.Pause(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("Pause: got %v, want Unavailable", err)
	}
	<-m.Done()
	if exit := m.Exit(); exit.Clean || exit.Status != 3 {
		t.Errorf("Exit: %+v", exit)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Errorf("Kill of what is gone: %v", err)
	}
	if f.running(t) {
		t.Error("process is left, perhaps as a zombie")
	}
	leftovers(t, cfg, fds, goroutines)
}

// TestStartFailsBeforeTheProcess covers the steps that come before QEMU runs, and what
// happens when it does not get far enough to answer.
func TestStartFailsBeforeTheProcess(t *testing.T) {
	tests := []struct {
		name   string
		change func(*vmm.Config)
		class  func(error) bool
		text   string
	}{
		{"no directory", func(c *vmm.Config) { c.Dir = filepath.Join(c.Dir, "none") }, errdefs.IsInvalidArgument, "none"},
		{"long agent path", func(c *vmm.Config) {
			c.Agent = "/" + strings.Repeat("a", 107)
		}, errdefs.IsInvalidArgument, "107"},
		{"agent path taken", func(c *vmm.Config) { c.Agent = c.Dir + "/ram" }, errdefs.IsFailedPrecondition, "ram"},
		{"no agent directory", func(c *vmm.Config) { c.Agent = c.Dir + "/none/a" }, errdefs.IsFailedPrecondition, "none"},
		{"no kernel", func(c *vmm.Config) { c.Kernel = c.Dir + "/none" }, errdefs.IsNotFound, "none"},
		{"no RAM", func(c *vmm.Config) { c.RAM = nil }, errdefs.IsInvalidArgument, "RAM"},
		{"other RAM size", func(c *vmm.Config) { c.Memory = 4 << 20 }, errdefs.IsInvalidArgument, "4194304"},
		{"odd memory", func(c *vmm.Config) { c.Memory = 1 << 20 }, errdefs.IsInvalidArgument, "2 MiB"},
		{"no vCPU", func(c *vmm.Config) { c.VCPUs = 0 }, errdefs.IsInvalidArgument, "vCPU"},
		{"disk in a NIC's slot", func(c *vmm.Config) { c.Disks[1].Slot = 7 }, errdefs.IsInvalidArgument, "disk rw: slot 7"},
		{"disk id", func(c *vmm.Config) { c.Disks[1].ID = "a,b" }, errdefs.IsInvalidArgument, "a,b"},
		{"long serial", func(c *vmm.Config) {
			c.Disks[1].Serial = strings.Repeat("s", 21)
		}, errdefs.IsInvalidArgument, "serial"},
		{"disk not writable", func(c *vmm.Config) {
			c.Disks[1].File = readOnly(c.Disks[1].File)
		}, errdefs.IsInvalidArgument, "disk rw"},
		{"NIC slot", func(c *vmm.Config) { c.NICs[0].Slot = 8 }, errdefs.IsInvalidArgument, "slot 8"},
		{"NIC MAC", func(c *vmm.Config) { c.NICs[0].MAC = "x" }, errdefs.IsInvalidArgument, "MAC"},
		{"NIC MTU", func(c *vmm.Config) { c.NICs[0].MTU = 0 }, errdefs.IsInvalidArgument, "MTU"},
		{"NIC without tap", func(c *vmm.Config) { c.NICs[0].Tap = nil }, errdefs.IsInvalidArgument, "tap"},
		{"no network namespace", func(c *vmm.Config) { c.NetNS = c.Dir + "/none" }, errdefs.IsNotFound, "none"},
		{"no cgroup", func(c *vmm.Config) { c.Cgroup = []string{c.Dir + "/none"} }, errdefs.IsFailedPrecondition, "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, cfg := fakeQEMU(t, "works", 0), testConfig(t)
			tt.change(&cfg)
			fds, goroutines := fdCount(t), runtime.NumGoroutine()
			_, err := f.Start(t.Context(), cfg)
			if err == nil || !tt.class(err) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v", err)
			}
			if f.running(t) {
				t.Error("process is left")
			}
			if tt.name != "agent path taken" {
				leftovers(t, cfg, fds, goroutines)
			}
		})
	}
}

func readOnly(f *os.File) *os.File {
	r, err := os.Open(f.Name())
	if err != nil {
		panic(err)
	}
	return r
}

// TestStartSaysWhatQEMUSaid: the end of its log is part of the error.
func TestStartSaysWhatQEMUSaid(t *testing.T) {
	f, cfg := fakeQEMU(t, qmptest.Exit, 0), testConfig(t)
	_, err := f.Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "told to go") {
		t.Errorf("got %v", err)
	}
}

func TestStartBinary(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for binary, class := range map[string]func(error) bool{
		"/no/qemu": errdefs.IsNotFound, text: errdefs.IsFailedPrecondition,
	} {
		d, err := New(Driver{Binary: binary, Accel: "tcg", AllowRoot: true, bare: true})
		if err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(t)
		fds, goroutines := fdCount(t), runtime.NumGoroutine()
		if _, err := d.Start(t.Context(), cfg); !class(err) {
			t.Errorf("%s: got %v", binary, err)
		}
		leftovers(t, cfg, fds, goroutines)
	}
}
