package shim

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/vmm"
)

// wantMode looks at what the VM's status says of its restore; reason is how that begins.
func (w *world) wantMode(mode, reason string) {
	w.t.Helper()
	q, err := w.machineService().Query(w.t.Context(), nil)
	w.must("query", err)
	if q.GetRestoreMode() != mode || !strings.HasPrefix(q.GetRestoreReason(), reason) ||
		(q.GetRestoreReason() == "") != (reason == "") {
		w.t.Errorf("restored %q (%s), want %q (%s...)", q.GetRestoreMode(), q.GetRestoreReason(), mode, reason)
	}
}

// By auto RAM comes while the VM runs where it can and there is enough of it. Whatever stands
// in the way is no error, and told.
func TestAutoRestore(t *testing.T) {
	const much = uint64(config.LazyFrom)
	for name, c := range map[string]struct {
		ram          uint64
		prepare      func(*world)
		mode, reason string
	}{
		"much":     {much, nil, config.RestoreLazy, "auto: 256 MiB of RAM"},
		"less":     {much - 4096, nil, config.RestoreEager, "auto: 255 MiB of RAM, fewer than 256"},
		"little":   {0, nil, config.RestoreEager, "auto: 0 MiB of RAM, fewer than 256"},
		"VMM":      {much, func(w *world) { w.hasty = true }, config.RestoreEager, "auto: VMM fake reads RAM before"},
		"tracking": {much, func(w *world) { w.tracking = nil }, config.RestoreEager, "auto: RAM is tracked by content"},
		"kernel": {much, func(w *world) {
			w.lazy = &fakeLazy{world: w, cannot: errFake}
		}, config.RestoreEager, "auto: this kernel cannot: " + errFake.Error()},
		"build": {much, func(w *world) { w.lazy = nil }, config.RestoreEager, "auto: this build cannot"},
		"container": {much, func(w *world) {
			w.cfg.Worker.Restore = config.RestoreEager
			w.annotate(config.RestoreAuto)
		}, config.RestoreLazy, "auto: 256 MiB of RAM"},
	} {
		t.Run(name, func(t *testing.T) {
			w, come := lazily(t)
			w.cfg.Worker.Restore, w.store.ram = config.RestoreAuto, c.ram
			if c.prepare != nil {
				c.prepare(w)
			}
			w.running()
			lazy := c.mode == config.RestoreLazy
			if j := w.journal(); (w.machine.cfg.Track == vmm.TrackPages) != lazy || (j.Postcopy != nil) != lazy ||
				(w.restoring() != "") != lazy {
				t.Errorf("VMM %+v, journal %+v, restore %q", w.machine.cfg, j, w.restoring())
			}
			come()
			if !eventually(func() bool { return w.restoring() == "" }) {
				t.Errorf("restore is %q", w.restoring())
			}
			w.wantMode(c.mode, c.reason)
		})
	}
}

func (w *world) annotate(mode string) { w.notes["godwit.dev/restore"] = mode }

// A VM disk wakes as any other VM; the shim's log tells of it.
func TestAutoRestoreOfAVMDisk(t *testing.T) {
	w, _ := lazily(t)
	w.cfg.Worker.Restore = config.RestoreAuto
	var log bytes.Buffer
	c := &creation{
		vm: &VM{log: slog.New(slog.NewTextHandler(&log, nil))}, host: w.host(), waits: true, next: &journal.Journal{},
		bundle:   &bundle.Bundle{},
		decision: record.Decision{Action: record.Restore},
		snapshot: &snapshot.Config{Spec: &spec.Spec{VMDisk: &spec.VMDisk{}}},
	}
	w.must("pick", c.chooseMode(t.Context(), uint64(config.LazyFrom)))
	if r := c.next.Restored; !r.Lazy() {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(log.String(), `msg="restore mode" mode=lazy reason="auto: 256 MiB of RAM`) {
		t.Errorf("the log has %s", &log)
	}
}

// An order is told as one, and by whom; an unknown mode is an error that names all modes.
func TestOrderedRestore(t *testing.T) {
	w, _ := lazily(t)
	w.annotate("later")
	err := errgrpc.ToNative(w.create())
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "eager, lazy, auto") {
		t.Errorf("create = %v", err)
	}
	w.annotate(config.RestoreEager)
	w.store.ram = uint64(config.LazyFrom)
	w.running()
	w.wantMode(config.RestoreEager, "annotation godwit.dev/restore")

	w, _ = lazily(t)
	w.running()
	w.wantMode(config.RestoreLazy, "worker.restore")

	w = newWorld(t).running()
	w.wantMode("", "")
}

// What was chosen stands, also for the successor of a shim that dies in the wake, whatever
// the configuration says by then.
func TestSuccessorKeepsTheMode(t *testing.T) {
	for mode, ram := range map[string]uint64{config.RestoreLazy: uint64(config.LazyFrom), config.RestoreEager: 1 << 20} {
		w, come := lazily(t)
		w.cfg.Worker.Restore, w.store.ram = config.RestoreAuto, ram
		old, at := w.halfAwake(1)
		if at == "" {
			t.Fatal("the shim does not die")
		}
		if f := old.postcopy.filling(); f != nil { // its workers die with it
			f.cancel()
			<-f.over
		}
		w.cfg.Worker.Restore, w.store.ram = config.RestoreLazy, uint64(config.LazyFrom)
		if mode == config.RestoreLazy {
			w.cfg.Worker.Restore = config.RestoreEager
		}
		next := w.succeed(old)
		(&adoption{vm: next}).finishWake(t.Context())
		w.isAwake(next, at)
		if (next.postcopy.filling() != nil) != (mode == config.RestoreLazy) {
			t.Errorf("%s: %+v brings RAM", mode, next.postcopy.filling())
		}
		m := &machineService{find: func() (*VM, error) { return next, nil }}
		if q, err := m.Query(t.Context(), nil); err != nil || q.GetRestoreMode() != mode ||
			!strings.HasPrefix(q.GetRestoreReason(), "auto: ") {
			t.Errorf("%s: the successor answers %v, %v", mode, q, err)
		}
		come()
		if !eventually(func() bool { return next.postcopy.filling() == nil }) {
			t.Errorf("%s: RAM is never whole", mode)
		}
		w.agent.exit("") <- 0
		<-next.owner.init.done
	}
}
