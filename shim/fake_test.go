package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/vmm"
)

var errFake = errors.New("failed on purpose")

// faults counts the calls of all fakes and fails one of them.
type faults struct {
	mu     sync.Mutex
	n      int
	failAt int // 0: none
	dieAt  int // the process that calls is killed there, before anything happens
	name   string
	hooks  map[string]func() error
}

// at runs fn in the middle of every call of that name; its error is the call's.
func (f *faults) at(name string, fn func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hooks == nil {
		f.hooks = map[string]func() error{}
	}
	f.hooks[name] = fn
}

func (f *faults) call(name string) error {
	if err := f.aside(name); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if f.n == f.dieAt {
		f.name = name
		runtime.Goexit()
	}
	if f.n == f.failAt {
		f.name = name
		return fmt.Errorf("%s: %w", name, errFake)
	}
	return nil
}

// arm makes the n-th call from now on fail.
func (f *faults) arm(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.failAt, f.dieAt, f.name = 0, n, 0, ""
}

// doom kills who makes the n-th call from now on.
func (f *faults) doom(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.failAt, f.dieAt, f.name = 0, 0, n, ""
}

func (f *faults) fired() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.name
}

// world is a node whose VMM, guest, network, store and records are fakes.
type world struct {
	*faults
	t               *testing.T
	cfg             *config.Config
	guest           func(*fakeAgent) Agent // nil: agent as it is
	agent           *fakeAgent
	net             *fakeNetwork
	records         *fakeRecords
	store           *fakeStore
	machine         *fakeMachine
	events          *recorder
	links           []network.Link
	cgroup          []string
	hooks           *specs.Hooks
	notes, podNotes map[string]string // annotations of the container, and of a pod
	procs           []proc.ID
	service         *Service
	lazy            Lazy // nil: RAM is whole before a VM runs
	unasked         bool // Create asks no record
	hasty           bool // the VMM reads RAM before it can wait for it
	bareTemplates   bool // of its VMM
	tracking        func(context.Context) tracking.Choice
	templates       *template.Store // nil: every VM boots
	disk            bool            // the image is a VM disk
	kept            fakeKept
	stream          *machinev1.Stream // of a VM that comes
	orders          Orders
	pods            Pods
	stdout, stderr  string // of the task
	execs           bool   // that run go along in a move
	aborted         uint32 // attempts: the next one has another number
	stop            context.CancelFunc
}

func newWorld(t *testing.T) *world {
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{}
	cfg := config.Default()
	cfg.Node, cfg.StateDir, cfg.RunDir, cfg.RAMDir = "a", filepath.Join(dir, "s"), filepath.Join(dir, "r"),
		filepath.Join(dir, "m")
	for _, d := range []string{cfg.StateDir, cfg.RunDir, cfg.RAMDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{
		faults: f, t: t, cfg: cfg, notes: map[string]string{"a": "b"}, agent: newFakeAgent(f),
		net: &fakeNetwork{faults: f, serves: make(chan served, 16)}, records: newFakeRecords(f), store: &fakeStore{faults: f},
		links: []network.Link{{Interface: "eth0", Tap: "tap0", NIC: spec.NIC{Name: "eth0", MAC: "02:00:00:00:00:01",
			MTU: 1500}, Found: network.Found{MTU: 1500}}},
	}
	w.restart()
	t.Cleanup(func() {
		w.t = t // a subtest may have lent its own, and is over
		f.arm(0)
		w.killAll()
		w.stop()
		w.rest()
		w.killAll() // an arrival may have started one meanwhile
		os.RemoveAll(dir)
	})
	return w
}

// processes are all processes of the node so far.
func (w *world) processes() []proc.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.procs)
}

func (w *world) killAll() {
	for _, p := range w.processes() {
		_ = p.Kill(context.Background())
	}
}

// rest waits until nothing of the VM works any more: the next test may change what it uses.
func (w *world) rest() {
	vm, err := w.service.current()
	if err != nil {
		return
	}
	over := make(chan struct{})
	vm.mu.Lock()
	a := vm.origin.arrival
	vm.mu.Unlock()
	go func() {
		vm.stopTraffic()
		if a != nil {
			<-a.done
		}
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(time.Minute):
		w.t.Log("something of the VM goes on after the test's end")
	}
}

// restart is a new shim process on the same node.
func (w *world) restart() {
	ctx := namespaces.WithNamespace(context.Background(), "ns")
	ctx, sd := shutdown.WithShutdown(ctx)
	w.stop = sd.Shutdown
	w.t.Cleanup(sd.Shutdown)
	w.events = &recorder{}
	w.service = NewService(ctx, w.events, sd, func(*config.Config) (*Host, error) { return w.host(), nil })
}

func (w *world) host() *Host {
	w.net.links = w.links
	return &Host{
		Config: w.cfg, Network: w.net, Disks: &fakeDisks{w.faults, w.disk, &w.kept},
		Records: w.records, Orders: w.orders, Pods: w.pods, Unasked: w.unasked,
		HostKernel: "test", Tracking: w.tracking, Localhost: w.agent.ports.listen,
		Driver:    func(context.Context, string) (vmm.Driver, error) { return w, nil },
		Snapshots: func([]string) Snapshots { return w.store },
		Dial: func(ctx context.Context, _ vmm.Machine, _ string, first FirstCall) (Agent, error) {
			var a Agent = w.agent
			if w.guest != nil {
				a = w.guest(w.agent)
			}
			if err := w.call("dial"); err != nil || first == nil {
				return a, err
			}
			return a, first(ctx, a)
		},
		Templates: w.templates, Lazy: w.lazy,
		Hold: func(ctx context.Context, _ sandboxprocess.Namespace, note func(proc.ID) error) error {
			if err := w.call("hold"); err != nil {
				return err
			}
			id, err := w.process()
			if err == nil {
				err = note(id)
			}
			if err != nil {
				return errors.Join(err, id.Kill(ctx))
			}
			return nil
		},
		Pool:   func(string, uint64, uint64) error { return w.call("pool") },
		Cgroup: func(string, string, string, cgroup.Cpuset) ([]string, error) { return w.cgroup, nil },
		Kernel: func() (spec.Kernel, error) { return spec.Kernel{Digest: "sha256:0"}, w.call("kernel") },
	}
}

// process starts something that lives until it is killed.
func (w *world) process() (proc.ID, error) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return proc.ID{}, err
	}
	id, err := proc.Find(cmd.Process.Pid)
	w.mu.Lock()
	w.procs = append(w.procs, id)
	w.mu.Unlock()
	go cmd.Wait()
	return id, err
}

func (w *world) Probe(context.Context) (vmm.Facts, error) {
	return vmm.Facts{Name: "fake", Version: "1.0", Machine: "m1", CPU: "max", Accel: "none", Waits: !w.hasty,
			BareTemplates: w.bareTemplates},
		w.call("probe")
}

func (w *world) Start(_ context.Context, cfg vmm.Config) (vmm.Machine, error) {
	if err := w.call("start VMM"); err != nil {
		return nil, err
	}
	id, err := w.process()
	if err != nil {
		return nil, err
	}
	w.machine = newFakeMachine(w.faults, id, cfg)
	return w.machine, nil
}

func (w *world) Adopt(_ context.Context, p vmm.Process) (vmm.Machine, error) {
	nics := w.machine.nics
	w.machine = newFakeMachine(w.faults, idOf(&p), vmm.Config{Dir: p.Dir})
	w.machine.nics = nics
	return w.machine, w.call("adopt")
}

// bundle writes a config.json and answers the request of a Create.
func (w *world) bundle() *taskapi.CreateTaskRequest {
	// Not the test's own: a VM that a test leaves running may end in it while that is removed.
	dir, err := os.MkdirTemp(filepath.Dir(w.cfg.StateDir), "bundle")
	w.must("make bundle", err)
	oci := &specs.Spec{
		Version: specs.Version, Hooks: w.hooks, Annotations: w.notes, Process: &specs.Process{Args: []string{"/bin/true"},
			Cwd: "/"}, Root: &specs.Root{Path: "rootfs"},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}}},
	}
	data, err := json.Marshal(oci)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return &taskapi.CreateTaskRequest{ID: "vm", Bundle: dir, Stdout: w.stdout, Stderr: w.stderr}
}

// execRequest is an exec of a shell.
func execRequest(id string) *taskapi.ExecProcessRequest {
	return &taskapi.ExecProcessRequest{ID: "vm", ExecID: id,
		Spec: &anypb.Any{Value: []byte(`{"args":["/bin/sh"],"cwd":"/"}`)}}
}

func ctxNS(t *testing.T) context.Context { return namespaces.WithNamespace(t.Context(), "ns") }

func (w *world) create() error {
	_, err := w.service.Create(ctxNS(w.t), w.bundle())
	return err
}

func (w *world) start() error {
	_, err := w.service.Start(ctxNS(w.t), &taskapi.StartRequest{ID: "vm"})
	return err
}

func (w *world) delete() error {
	_, err := w.service.Delete(ctxNS(w.t), &taskapi.DeleteRequest{ID: "vm"})
	return err
}

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

func (w *world) running() *world {
	w.t.Helper()
	w.must("create", w.create())
	w.must("start", w.start())
	return w
}

func (w *world) machineService() *machineService { return &machineService{find: w.service.current} }

func (w *world) ref() *machinev1.Ref {
	return &machinev1.Ref{Operation: "op1", Attempt: 1 + w.aborted, Generation: w.records.rec.GetGeneration()}
}

func (w *world) capture() (*machinev1.CaptureResponse, error) {
	return w.machineService().Capture(w.t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r", Tag: "t",
		Execs: w.execs})
}

// asleep hibernates the VM as the engine does, and starts a new shim.
func (w *world) asleep() *world { return w.running().sleeps() }

// sleeps is asleep for a VM that runs.
func (w *world) sleeps() *world {
	w.t.Helper()
	ref := w.ref()
	r, err := w.capture()
	w.must("capture", err)
	_, err = w.machineService().Vote(w.t.Context(), &machinev1.VoteRequest{Ref: ref})
	w.must("vote", err)
	w.records.sleep(r.GetDigest())
	_, err = w.machineService().Release(w.t.Context(), &machinev1.ReleaseRequest{Ref: ref, Digest: r.GetDigest()})
	w.must("release", err)
	w.must("delete", w.delete())
	w.nothingLeft()
	w.restart()
	return w
}

// nothingLeft looks at what a VM takes on its node.
func (w *world) nothingLeft() {
	w.t.Helper()
	for _, p := range w.processes() {
		if !eventually(func() bool { return !lives(p) }) {
			w.t.Errorf("process %d lives", p.PID)
		}
	}
	if w.net.attached {
		w.t.Error("network is attached")
	}
	if entries, _ := filepath.Glob(filepath.Join(w.cfg.RAMDir, "[^.]*")); len(entries) > 0 {
		w.t.Errorf("RAM files %v are left", entries)
	}
	if _, err := os.Stat(w.cfg.VMRunDir("ns", "vm")); err == nil {
		w.t.Error("run directory is left")
	}
	if j, err := journal.Read(w.cfg.VMDir("ns", "vm")); err == nil && j.Phase != journal.Fenced {
		w.t.Errorf("journal is left: %s", j.Phase)
	}
	if _, err := os.Stat(filepath.Join(w.cfg.VMDir("ns", "vm"), "disks")); err == nil {
		w.t.Error("disks are left")
	}
}
