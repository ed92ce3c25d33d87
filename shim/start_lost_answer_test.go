package shim

import (
	"errors"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// full makes every write of the journal fail until the answered function is called.
func (w *world) full() (free func()) { return w.fullUnder("vm") }

// fullUnder is full of the VM with that id.
func (w *world) fullUnder(id string) (free func()) {
	blocked := durable.Unfinished(journal.File(w.cfg.VMDir("ns", id)))
	w.must("fill disk", os.MkdirAll(blocked+"/x", 0o700))
	return func() { w.must("free disk", os.RemoveAll(blocked)) }
}

func (w *world) sleepsAgain() {
	w.t.Helper()
	if w.records.rec.GetOwner().GetDigest() == "" || w.records.rec.GetOperation() != nil ||
		w.records.phase != nodev1.Phase_PHASE_FAILED {
		w.t.Errorf("record is %v, the operation ended as %s", w.records.rec, w.records.phase)
	}
}

// A wake whose commit lands and whose answer does not has run nothing: the record hears
// it, and the snapshot owns the VM again. So with a node that cannot write OWN.
func TestLostAnswerOfTheCommit(t *testing.T) {
	for name, prepare := range map[string]func(*world) (after func()){
		"answer lost": func(w *world) func() { w.records.lose = "commit"; return func() {} },
		"disk full": func(w *world) (after func()) {
			w.at("commit", func() error { after = w.full(); return nil })
			return func() { after() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).asleep()
			w.cfg.Timeouts.Daemon = config.Duration(2 * commitRetry)
			w.must("create", w.create())
			after := prepare(w)
			if err := w.start(); err == nil {
				t.Fatal("start succeeded")
			}
			w.sleepsAgain()
			w.at("commit", nil)
			after()
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// godwitd starts anew while a wake commits: the answer is lost, or nothing answers. The shim asks again, and the VM
// runs.
func TestCommitIsAskedAgain(t *testing.T) {
	for name, first := range map[string]func(*world) error{
		"answer lost": func(w *world) error { w.records.lose = "commit"; return nil },
		"no answer":   func(*world) error { return errdefs.ErrUnavailable },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).asleep()
			w.must("create", w.create())
			before, asked := w.records.rec.GetGeneration(), 0
			w.at("commit", func() error {
				w.records.lose = ""
				if asked++; asked == 1 {
					return first(w)
				}
				return nil
			})
			w.must("start", w.start())
			if rec := w.records.rec; asked != 2 || rec.GetGeneration() != before+1 || rec.GetOwner().GetNode() == "" {
				t.Errorf("asked %d times; record %v", asked, rec)
			}
		})
	}
}

// While the record is out of reach, the fence of a wake that the shim opened itself
// stays: Delete tells the record, or the successor does.
func TestFenceStaysUntilTheRecordKnows(t *testing.T) {
	for name, settle := range map[string]func(*world){
		"delete": func(w *world) { w.must("delete", w.delete()) },
		"successor": func(w *world) {
			away := func() error { return errdefs.ErrUnavailable }
			w.at("get", away)
			w.must("delete", w.delete())
			j, err := journal.Read(w.cfg.VMDir("ns", "vm"))
			if err != nil || j.Phase != journal.Fenced || !j.Self || j.Shim != (proc.ID{}) {
				w.t.Fatalf("fence is %+v, %v", j, err)
			}
			w.at("get", nil)
			w.must("adopt", Adopt(w.t.Context(), w.host(), "ns", "vm"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).asleep()
			w.cfg.Timeouts.Daemon = config.Duration(2 * commitRetry)
			w.must("create", w.create())
			w.at("commit", func() error { return errdefs.ErrUnavailable })
			w.at("get", func() error { return errdefs.ErrUnavailable })
			if err := w.start(); err == nil {
				t.Fatal("start succeeded")
			}
			w.at("get", nil)
			settle(w)
			w.sleepsAgain()
			w.nothingLeft()
			if _, err := os.Stat(w.cfg.VMDir("ns", "vm")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the fence is left: %v", err)
			}
		})
	}
}

// ordered is the Create of a wake that the engine drives.
func (w *world) ordered() (create func() error) {
	w.t.Helper()
	w.records.rec.Operation = &nodev1.Operation{
		Id: "op2", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "a", Digest: w.records.rec.GetOwner().GetDigest(),
		Generation: w.records.rec.GetGeneration(), Phase: nodev1.Phase_PHASE_TRANSFERRING,
	}
	order, err := record.Order("", record.Intent{Operation: "op2", Attempt: 1, Digest: w.records.rec.GetOwner().
		GetDigest()})
	w.must("order", err)
	return func() error {
		r := w.bundle()
		r.Options = order
		_, err := w.service.Create(ctxNS(w.t), r)
		return err
	}
}

// A wake that the engine drives has run nothing if its node could write neither OWN nor its fence after the commit. The
// engine starts it until it hears so: once there is room, it does (I4).
func TestFenceOfAWakeIsOwed(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.ordered()())
	var free func()
	w.at("commit", func() error { free = w.full(); return nil })
	if err := w.start(); err == nil {
		t.Fatal("start succeeded")
	}
	w.at("commit", nil)
	if vm, _ := w.service.current(); !vm.inState(Stopped) || w.phase() != journal.Ready ||
		w.records.rec.GetOwner().GetNode() != "a" {
		t.Fatalf("VM is %s, journal %s, record %v", vm.state, w.phase(), w.records.rec)
	}
	if err := w.start(); err == nil {
		t.Error("start succeeded on a full disk")
	}
	free()
	if err := errgrpc.ToNative(w.start()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start: %v", err)
	}
	q, err := w.machineService().Query(t.Context(), &machinev1.QueryRequest{})
	if err != nil || q.GetRecord() != string(journal.Fenced) || q.GetRef().GetOperation() != "op2" || w.machine.running() {
		t.Errorf("it says %v, %v", q, err)
	}
}

// The engine tries an attempt again whose Create failed for a reason that passes: no
// fence is in the way. One that was given up after its Create stays given up.
func TestTheSameAttemptAgain(t *testing.T) {
	w := newWorld(t).asleep()
	create := w.ordered()
	for _, point := range []string{"open snapshot", "fill", "hold"} {
		w.at(point, func() error { return errdefs.ErrUnavailable })
		if err := create(); err == nil {
			t.Fatalf("%s: create succeeded", point)
		}
		w.nothingLeft()
		w.at(point, nil)
	}
	w.must("create again", create())
	w.must("delete", w.delete())
	w.restart()
	if err := create(); err == nil {
		t.Error("an attempt that was given up runs again")
	}
}
