package shim

import (
	"net"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
)

func (r *fakeRecords) set(change func(*nodev1.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.rec)
}

// deadDestination is a restored VM, complete and not started, whose shim died.
func deadDestination(t *testing.T, self bool) *world {
	t.Helper()
	w := newWorld(t).asleep()
	w.must("create", w.create())
	vm, _ := w.service.current()
	w.must("unserve", vm.socket.close(vm.life))
	w.must("forget shim", vm.write(func(j *journal.Journal) { j.Shim, j.Self = proc.ID{}, self }))
	if p := vm.journal.Load().Phase; p != journal.Ready {
		t.Fatalf("journal is %s", p)
	}
	return w
}

func (w *world) gone() bool {
	_, err := os.Stat(w.cfg.VMDir("ns", "vm"))
	return os.IsNotExist(err)
}

// A wake that its shim opened is closed by the successor: the snapshot owns the VM, on
// either side of the commit.
func TestFenceClosesTheShimsOwnWake(t *testing.T) {
	for name, commit := range map[string]func(*nodev1.Record){
		"uncommitted": func(*nodev1.Record) {},
		"committed": func(rec *nodev1.Record) {
			rec.Owner, rec.Operation.Phase = &nodev1.Owner{Node: "a"}, nodev1.Phase_PHASE_COMMITTED
			rec.Generation++
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := deadDestination(t, true)
			w.records.set(commit)
			w.must("adopt", Adopt(t.Context(), w.host(), "ns", "vm"))
			w.nothingLeft()
			if rec := w.records.rec; rec.GetOwner().GetDigest() == "" || rec.GetOperation() != nil || !w.gone() {
				t.Errorf("record %v, journal gone: %t", rec, w.gone())
			}
		})
	}
}

// While the engine's operation is open the fence answers for the attempt; after it
// nothing is left.
func TestFenceAnswersWhileTheOperationIsOpen(t *testing.T) {
	w := deadDestination(t, false)
	done := make(chan error, 1)
	go func() { done <- Adopt(t.Context(), w.host(), "ns", "vm") }()
	var q *machinev1.QueryResponse
	if !eventually(func() bool { q = w.query(); return q != nil }) {
		t.Fatal("nobody answers for the VM")
	}
	if op := w.records.rec.GetOperation().GetId(); q.GetRecord() != string(journal.Fenced) ||
		q.GetRef().GetOperation() != op {
		t.Errorf("the fence says %s of operation %s, want %s", q.GetRecord(), q.GetRef().GetOperation(), op)
	}
	w.nothingLeftButTheFence()
	w.records.set(func(rec *nodev1.Record) { rec.Operation = nil })
	w.must("adopt", <-done)
	if !w.gone() {
		t.Error("the fence is left though its operation is over")
	}
	w.nothingLeft()
}

func (w *world) query() *machinev1.QueryResponse {
	conn, err := net.Dial("unix", w.cfg.MachineSocket("ns", "vm"))
	if err != nil {
		return nil
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	q, err := machinev1.NewMachineClient(client).Query(w.t.Context(), &machinev1.QueryRequest{})
	if err != nil {
		return nil
	}
	return q
}

func (w *world) nothingLeftButTheFence() {
	w.t.Helper()
	for _, p := range w.processes() {
		if lives(p) {
			w.t.Errorf("process %d lives", p.PID)
		}
	}
	if j, err := journal.Read(w.cfg.VMDir("ns", "vm")); err != nil || j.Phase != journal.Fenced {
		w.t.Errorf("journal %v, %v", j, err)
	}
}

// A successor that the records do not answer waits, and stops with its context.
func TestFenceWaitsForTheRecord(t *testing.T) {
	w := deadDestination(t, true)
	w.arm(1) // Get
	if err := Adopt(t.Context(), w.host(), "ns", "vm"); !errdefs.IsUnavailable(err) {
		t.Errorf("adopt = %v, want unavailable", err)
	}
	if w.gone() {
		t.Error("the journal is gone though the wake is open")
	}
	j, err := journal.Read(w.cfg.VMDir("ns", "vm"))
	w.must("load journal", err)
	j.Shim = proc.ID{} // that successor has ended
	w.must("store journal", j.Write(w.cfg.VMDir("ns", "vm")))
	w.must("adopt again", Adopt(t.Context(), w.host(), "ns", "vm"))
	w.nothingLeft()
}

// A later Create of the name clears what a dead destination left.
func TestCreateClearsADeadDestination(t *testing.T) {
	w := deadDestination(t, false)
	w.records.set(func(rec *nodev1.Record) { rec.Operation = nil })
	w.restart()
	w.must("create", w.create())
	w.must("start", w.start())
}

// A fence that a Create has cleared is the Create's alone until its own journal stands: a successor would take the
// socket away that the new task serves. One that fails lets go of it.
func TestCreateKeepsTheFence(t *testing.T) {
	w := deadDestination(t, false)
	w.records.set(func(rec *nodev1.Record) { rec.Operation = nil })
	w.restart()
	tried := 0
	refuse := error(errdefs.ErrUnavailable)
	w.at("ensure", func() error {
		tried++
		if j := w.left(); j.Phase != journal.Fenced || j.Shim.PID != os.Getpid() {
			t.Errorf("the fence: %+v", j)
		}
		if err := Adopt(t.Context(), w.host(), "ns", "vm"); !errdefs.IsAlreadyExists(err) {
			t.Errorf("adopt = %v", err)
		}
		return refuse
	})
	if err := w.create(); err == nil || tried != 1 {
		t.Fatalf("create = %v, the record was asked %d times", err, tried)
	}
	if j := w.left(); j.Phase != journal.Fenced || j.Shim != (proc.ID{}) {
		t.Errorf("a Create that failed leaves %+v", j)
	}
	refuse = nil
	w.restart()
	w.must("create", w.create())
	if q := w.query(); q.GetRecord() == string(journal.Fenced) {
		t.Errorf("it answers %v", q)
	}
	w.must("start", w.start())
}

// The journal of a living shim cannot be claimed.
func TestTakeLeavesTheLiving(t *testing.T) {
	w := newWorld(t).asleep()
	w.must("create", w.create())
	if err := Adopt(t.Context(), w.host(), "ns", "vm"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("adopt = %v", err)
	}
	w.restart()
	if err := errgrpc.ToNative(w.create()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("create = %v", err)
	}
}

// A VMM that dies when its snapshot has been made ends the VM with the operation.
func TestAbortOfAnEndedVM(t *testing.T) {
	w := newWorld(t).running()
	_, err := w.capture()
	w.must("capture", err)
	w.must("kill", w.machine.Kill(t.Context()))
	vm, _ := w.service.current()
	r, err := w.machineService().Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if j := vm.journal.Load(); r.GetState() != string(Stopped) || j.Phase != journal.Own || j.Operation != "" {
		t.Errorf("VM is %s, journal %s of operation %q", r.GetState(), j.Phase, j.Operation)
	}
	w.must("delete", w.delete())
	w.nothingLeft()
}

// A VMM that is gone before it was told to run has not run.
func TestResumeOfADeadVMM(t *testing.T) {
	w := newWorld(t).running()
	vm, _ := w.service.current()
	w.must("kill", w.machine.Kill(t.Context()))
	s := &starting{vm: vm, task: vm.owner}
	if err := s.resumeGuest(t.Context(), nil); !errdefs.IsAborted(err) || s.ran {
		t.Errorf("resume = %v, ran %t", err, s.ran)
	}
	<-vm.owner.init.done // the end notes itself in the bundle
}

// An adopted VM ends when its container is gone; one with a shim of its own does not.
func TestEndIsForTheAdopted(t *testing.T) {
	w := newWorld(t)
	vm, m, _ := orphan(t, w, false)
	if _, err := m.End(t.Context(), &machinev1.EndRequest{}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("end of a held VM = %v", err)
	}
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	if q, err := m.Query(t.Context(), &machinev1.QueryRequest{}); err != nil || !q.GetAdopted() {
		t.Errorf("query = %v, %v", q, err)
	}
	_, err = m.End(t.Context(), &machinev1.EndRequest{})
	w.must("end", err)
	<-vm.owner.init.done
	w.must("reclaim", reclaim(t.Context(), vm.host, vm.dir, vm.journal.Load()))
	w.nothingLeft()

	other := newWorld(t).running()
	if _, err := other.machineService().End(t.Context(), &machinev1.EndRequest{}); !errdefs.IsFailedPrecondition(
		errgrpc.ToNative(err)) {
		t.Errorf("end of a VM with a shim = %v", err)
	}
}
