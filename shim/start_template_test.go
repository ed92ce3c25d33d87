package shim

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/rampool"
	"godwit.dev/godwit/shim/starts"
	"godwit.dev/godwit/shim/template"
	"godwit.dev/godwit/vmm"
)

// model is the VMM of a template's maker: its guest writes a page, its state has the
// addresses of its NICs.
type model struct {
	*world
	page []byte
}

type modelMachine struct {
	*fakeMachine
	cfg vmm.Config
}

const modelPage = 7 // where the guest of a template has something in its RAM

func (m *model) Start(ctx context.Context, cfg vmm.Config) (vmm.Machine, error) {
	if _, err := cfg.RAM.WriteAt(m.page, modelPage*4096); err != nil {
		return nil, err
	}
	id, err := m.process()
	if err != nil {
		return nil, err
	}
	return &modelMachine{newFakeMachine(m.faults, id, cfg), cfg}, nil
}

func (m *modelMachine) SaveState(_ context.Context, f *os.File) error {
	_, err := f.WriteString("state")
	for _, n := range m.cfg.NICs {
		mac, parse := net.ParseMAC(n.MAC)
		if parse != nil {
			return parse
		}
		if _, e := f.Write(mac); e != nil {
			err = e
		}
	}
	return err
}

// withTemplate makes one of the shape that the world's VM has.
func (w *world) withTemplate() *model {
	w.t.Helper()
	w.templates = &template.Store{Dir: filepath.Join(w.cfg.StateDir, "templates")}
	w.cfg.VM.Memory = config.MinVM
	w.running()
	w.must("kill", w.kill("", 9))
	w.wait("")
	w.must("delete", w.delete())
	w.agent = newFakeAgent(w.faults)
	w.restart()
	due, err := w.templates.Due(1)
	if err != nil || len(due) != 1 {
		w.t.Fatalf("due are %v, %v", due, err)
	}
	m := &model{world: w, page: bytes.Repeat([]byte("godwit16"), 512)}
	maker := &template.Maker{
		Store: *w.templates, Driver: m, Dir: w.t.TempDir(), MaxBytes: 1 << 20, Quiet: time.Nanosecond,
		Prepare: func(context.Context, vmm.Machine, string) (string, error) { return "6.1", nil },
		Tap:     func(string) (*os.File, error) { return os.Open(os.DevNull) },
	}
	w.must("make template", maker.Make(w.t.Context(), due[0]))
	return m
}

// ram answers the page that a template's guest has written, nil if the RAM is empty.
func (w *world) ram() []byte {
	w.t.Helper()
	path := w.cfg.RAMFile("ns", "vm")
	f, err := os.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	if _, err := f.ReadAt(page, modelPage*4096); err != nil {
		w.t.Fatal(err)
	}
	switch n := rampool.Resident(path); {
	case n == 0:
		return nil
	case n > uint64(len(page)):
		w.t.Errorf("the RAM has %d bytes that nobody wrote", n-uint64(len(page)))
	}
	return page
}

// modes of all starts, in order.
func (w *world) modes() (modes []string) {
	w.t.Helper()
	data, err := os.ReadFile(starts.File(w.cfg.StateDir))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, mode := range []string{starts.Boot, starts.Clone, starts.Restore} {
		for range bytes.Count(data, []byte(`"mode":"`+mode+`"`)) {
			modes = append(modes, mode)
		}
	}
	return modes
}

// A VM whose shape has a template starts as a copy of it: its RAM, its kernel, the boot
// that it says it is, and the name of the way.
func TestClone(t *testing.T) {
	w := newWorld(t)
	m := w.withTemplate()
	w.agent.boot = "boot-2"
	w.running()
	if !w.machine.cfg.Incoming || w.machine.cfg.Kernel != "" {
		t.Errorf("the VMM boots: %+v", w.machine.cfg)
	}
	if !bytes.Equal(w.ram(), m.page) {
		t.Error("the RAM is not the template's")
	}
	j, err := journal.Read(w.cfg.VMDir("ns", "vm"))
	if err != nil || j.BootID != "boot-2" || j.Spec.Kernel.Version != "6.1" {
		t.Errorf("journal %+v, %v", j, err)
	}
	if got := w.modes(); !slices.Equal(got, []string{starts.Boot, starts.Clone}) {
		t.Errorf("starts are %v", got)
	}
	w.wantMode(starts.Clone, "")
}

// Whatever call of a copy fails, the VM boots in the same Start, with nothing of the copy in it. The template is used
// no more. What fails after the copy fails the Start.
func TestCloneFailsAtEachCall(t *testing.T) {
	ofCopy := []string{"start VMM", "load state", "link up", "resume", "dial", "restored"}
	var seen []string
	failEach(t, func(w *world) {
		w.withTemplate()
		w.must("create", w.create())
	}, (*world).start, func(t *testing.T, w *world, name string) {
		if !slices.Contains(ofCopy, name) {
			return
		}
		seen = append(seen, name)
		if state := w.status(""); state.String() != "RUNNING" {
			t.Fatalf("the task is %s", state)
		}
		if w.machine.cfg.Incoming {
			t.Error("the VMM that runs does not boot")
		}
		if w.ram() != nil {
			t.Error("the VM boots on the RAM of a copy")
		}
		if dirs, _ := filepath.Glob(filepath.Join(w.templates.Dir, "*", "ram")); len(dirs) > 0 {
			t.Errorf("the template is kept: %v", dirs)
		}
		if got := w.modes(); !slices.Equal(got, []string{starts.Boot, starts.Boot}) {
			t.Errorf("starts are %v", got)
		}
		alive := 0
		for _, p := range w.processes()[1:] { // without the first VM's
			if lives(p) {
				alive++
			}
		}
		if alive > 2 { // the holder and one VMM
			t.Errorf("%d processes are left", alive)
		}
	})
	if len(seen) < len(ofCopy) {
		t.Errorf("calls %v failed, of %v", seen, ofCopy)
	}
}

// A copy that answers and then dies, or says nothing more, fails one Start and no more: its
// template is thrown away. What the guest refuses says nothing about the template.
func TestCloneThatFallsSilent(t *testing.T) {
	for name, c := range map[string]struct {
		at   func(w *world) error
		kept int
	}{
		"dies":    {func(w *world) error { return errors.Join(errFake, w.machine.Kill(w.t.Context())) }, 0},
		"silent":  {nil, 0},
		"refuses": {func(*world) error { return errFake }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.withTemplate()
			w.must("create", w.create())
			if c.at == nil {
				w.cfg.Timeouts.Boot = 1
				c.at = func(*world) error { return errFake }
			}
			w.at("setup", func() error { return c.at(w) })
			if err := w.start(); err == nil {
				t.Fatal("the start did not fail")
			}
			found, err := filepath.Glob(filepath.Join(w.templates.Dir, "*", "ram"))
			if err != nil || len(found) != c.kept {
				t.Errorf("templates %v are left, %v", found, err)
			}
		})
	}
}

// A copy that failed and does not end has the RAM still: nothing boots on it.
func TestCloneThatDoesNotEnd(t *testing.T) {
	w := newWorld(t)
	w.withTemplate()
	w.must("create", w.create())
	w.at("load state", func() error {
		w.machine.mu.Lock()
		w.machine.deaf = true
		w.machine.mu.Unlock()
		return errFake
	})
	was, wasEnd := undoBound, endBound
	undoBound, endBound = 10*time.Millisecond, 10*time.Millisecond
	t.Cleanup(func() { undoBound, endBound = was, wasEnd })
	if err := w.start(); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("start: %v", err)
	}
	if n := len(w.processes()); n != 5 { // two of the VM before, the maker's VMM, the holder, one VMM
		t.Errorf("%d processes were started", n)
	}
}

// A damaged template is found out before anything of it runs, whatever part it is.
func TestCloneOfDamagedTemplate(t *testing.T) {
	for _, file := range []string{"template.json", "state", "ram"} {
		for how, damage := range map[string]func(string) error{
			"gone":     os.Remove,
			"cut":      func(path string) error { return os.Truncate(path, 3) },
			"scribble": scribble,
		} {
			t.Run(file+" "+how, func(t *testing.T) {
				w := newWorld(t)
				w.withTemplate()
				found, err := filepath.Glob(filepath.Join(w.templates.Dir, "*", file))
				if err != nil || len(found) != 1 {
					t.Fatalf("templates are %v, %v", found, err)
				}
				w.must("damage", damage(found[0]))
				w.running()
				if w.machine.cfg.Incoming || w.ram() != nil {
					t.Error("the VM is a copy of a damaged template")
				}
				if again, _ := filepath.Glob(filepath.Join(w.templates.Dir, "*", "state")); len(again) > 0 &&
					file+how != "template.jsongone" {
					t.Error("the damaged template is kept")
				}
			})
		}
	}
}

func scribble(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 2); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, 2)
	return err
}

// A VM that has a snapshot is restored, whatever template there is.
func TestRestoreBeforeTemplate(t *testing.T) {
	w := newWorld(t)
	m := w.withTemplate()
	w.asleep()
	w.running()
	if bytes.Equal(w.ram(), m.page) {
		t.Error("the RAM of a restored VM is the template's")
	}
	if got := w.modes(); !slices.Equal(got, []string{starts.Boot, starts.Clone, starts.Restore}) {
		t.Errorf("starts are %v", got)
	}
}

// A guest that sees the host's CPU sees it as the host's kernel lets it: another kernel,
// another shape. Elsewhere it makes no difference.
func TestShapeOfTheHostsCPU(t *testing.T) {
	for cpu, same := range map[string]bool{"host": false, "max": true} {
		f := vmm.Facts{Name: "qemu", CPU: cpu}
		if got := baseShape(f, "6.1").Key() == baseShape(f, "6.12").Key(); got != same {
			t.Errorf("CPU %s: the shape is the same: %v", cpu, got)
		}
	}
}

// A VMM whose templates are bare has one shape for VMs of any disks and NICs: each gets its own once it is copied.
func TestBareShape(t *testing.T) {
	w := newWorld(t)
	w.templates = &template.Store{Dir: filepath.Join(w.cfg.StateDir, "templates")}
	w.bareTemplates = true
	w.running()
	due, err := w.templates.Due(1)
	if err != nil || len(due) != 1 {
		t.Fatalf("due are %v, %v", due, err)
	}
	o := template.Order{Memory: due[0].Memory, VCPUs: due[0].VCPUs}
	for _, o.NICs = range []int{0, 2} {
		for _, o.Layers = range []int{1, 3} {
			if shape, err := ShapeOf(t.Context(), w.host(), o); err != nil || shape.Key() != due[0].Key() {
				t.Errorf("%+v: %+v, %v; the VM's is %+v", o, shape, err, due[0])
			}
		}
	}
}

// An order names the shape that a VM which says nothing has: that VM starts as a copy of what was
// ordered. Each field of an order makes another shape.
func TestOrderedShapeIsThatOfAVM(t *testing.T) {
	w := newWorld(t)
	w.templates = &template.Store{Dir: filepath.Join(w.cfg.StateDir, "templates")}
	w.running()
	due, err := w.templates.Due(1)
	if err != nil || len(due) != 1 {
		t.Fatalf("due are %v, %v", due, err)
	}
	own := template.Order{NICs: len(due[0].NICs), Memory: due[0].Memory, VCPUs: due[0].VCPUs}
	want := due[0] // of a VM whose image has a layer, which the fake disks have not
	want.Disks = []template.Disk{{Slot: want.Disks[0].Slot, ReadOnly: true}, {Slot: want.Disks[0].Slot + 1}}
	seen := map[string]bool{}
	for _, change := range []func(*template.Order){
		func(*template.Order) {}, func(o *template.Order) { o.NICs++ }, func(o *template.Order) { o.Layers = 2 },
		func(o *template.Order) { o.Memory *= 2 }, func(o *template.Order) { o.VCPUs++ },
	} {
		o := own
		change(&o)
		shape, err := ShapeOf(t.Context(), w.host(), o)
		if err != nil || seen[shape.Key()] || (o == own) != (shape.Key() == want.Key()) {
			t.Errorf("%+v: %+v, %v; the VM's is %+v", o, shape, err, want)
		}
		seen[shape.Key()] = true
	}
}
