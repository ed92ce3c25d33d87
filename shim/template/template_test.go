package template

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

const testRAM = 8 << 20

var errFake = errors.New("failed on purpose")

// fakeVMM is a VMM whose guest has written something, and whose call of a name fails.
type fakeVMM struct {
	vmm.Driver
	vmm.Machine
	ram   []byte
	state string
	fail  string
	cfg   vmm.Config
	done  chan struct{}
	lives int
	owner int // of the RAM
}

func (v *fakeVMM) call(name string) error {
	if v.fail == name {
		return errFake
	}
	return nil
}

func (v *fakeVMM) Start(_ context.Context, cfg vmm.Config) (vmm.Machine, error) {
	if err := v.call("start"); err != nil {
		return nil, err
	}
	v.cfg, v.done = cfg, make(chan struct{})
	v.lives++
	var st unix.Stat_t
	if err := unix.Fstat(int(cfg.RAM.Fd()), &st); err != nil {
		return nil, err
	}
	v.owner = int(st.Uid)
	_, err := cfg.RAM.WriteAt(v.ram, 0)
	return v, err
}

func (v *fakeVMM) Resume(context.Context) error { return v.call("resume") }
func (v *fakeVMM) Pause(context.Context) error  { return v.call("pause") }
func (v *fakeVMM) Kill(context.Context) error   { v.lives--; return v.call("kill") }
func (v *fakeVMM) Done() <-chan struct{}        { return v.done }
func (v *fakeVMM) SaveState(_ context.Context, f *os.File) error {
	_, err := f.WriteString(v.state)
	return errors.Join(err, v.call("save"))
}

// pattern is a RAM with runs of pages of all lengths and holes between.
func pattern() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	ram := make([]byte, testRAM)
	for at := 0; at < len(ram); {
		n := (1 + r.IntN(64)) * pageSize
		if r.IntN(2) == 0 {
			for i := at; i < min(at+n, len(ram)); i++ {
				ram[i] = byte(r.Uint32() | 1)
			}
		}
		at += n
	}
	return ram
}

type fixture struct {
	*Maker
	vm    *fakeVMM
	shape Shape
}

func newFixture(t *testing.T) *fixture {
	v := &fakeVMM{ram: pattern(), state: "device state"}
	f := &fixture{vm: v, shape: Shape{Build: "b", VMM: "fake", Memory: testRAM, VCPUs: 1,
		Disks: []Disk{{8, true}, {9, false}}}}
	f.Maker = &Maker{
		Store: Store{filepath.Join(t.TempDir(), "templates")}, Driver: v, Dir: t.TempDir(), MaxBytes: testRAM,
		Quiet:   time.Nanosecond,
		Prepare: func(context.Context, vmm.Machine, string) (string, error) { return "6.1", v.call("prepare") },
		Tap:     func(string) (*os.File, error) { return os.CreateTemp(t.TempDir(), "") },
	}
	lock, err := f.Store.Lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return f
}

// pour answers the RAM of a copy.
func (f *fixture) pour(t *testing.T, tp *Template) ([]byte, error) {
	t.Helper()
	ram, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	if err := ram.Truncate(testRAM); err != nil {
		t.Fatal(err)
	}
	if err := tp.CopyRAM(t.Context(), ram); err != nil {
		return nil, err
	}
	return os.ReadFile(ram.Name())
}

// The VMM in which a template is made is the maker's user, by the owner of its RAM.
func TestVMMOfTemplateIsItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	f := newFixture(t)
	f.User = 0x7ffe0000
	if err := f.Make(t.Context(), f.shape); err != nil {
		t.Fatal(err)
	}
	if f.vm.owner != f.User {
		t.Errorf("RAM belongs to %d, not to %d", f.vm.owner, f.User)
	}
}

// The template of a VM that gets disks while it runs has the places for them: its guest learns of no other devices.
func TestTemplateHasPlacesForHotDisks(t *testing.T) {
	for _, hot := range []bool{false, true} {
		f := newFixture(t)
		f.shape.HotDisks = hot
		if err := f.Make(t.Context(), f.shape); err != nil {
			t.Fatal(err)
		}
		if f.vm.cfg.HotDisks != hot {
			t.Errorf("a shape with hot disks %t was booted with %t", hot, f.vm.cfg.HotDisks)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Store.Open(f.shape); !errdefs.IsNotFound(err) {
		t.Fatalf("open what is not there: %v", err)
	}
	for range 2 {
		if err := f.Store.Request(f.shape); err != nil {
			t.Fatal(err)
		}
	}
	due, err := f.Store.Due(2)
	if diff := cmp.Diff([]Shape{f.shape}, due); err != nil || diff != "" {
		t.Fatalf("due: %v (-want +got):\n%s", err, diff)
	}
	if err := f.Make(t.Context(), due[0]); err != nil {
		t.Fatal(err)
	}
	if f.vm.lives != 0 {
		t.Error("the VM lives")
	}
	if due, err := f.Store.Due(1); len(due) > 0 || err != nil {
		t.Errorf("due after it was made: %v, %v", due, err)
	}
	tp, err := f.Store.Open(f.shape)
	if err != nil {
		t.Fatal(err)
	}
	defer tp.Close()
	// A VM that has it open keeps it, whatever becomes of the files.
	if err := f.Store.Discard(f.shape, errFake); err != nil {
		t.Fatal(err)
	}
	got, err := f.pour(t, tp)
	if err != nil || !bytes.Equal(got, f.vm.ram) {
		t.Errorf("RAM differs, %v", err)
	}
	if f.vm.cfg.Kernel != f.Kernel || len(f.vm.cfg.Disks) != 2 || !f.vm.cfg.Disks[0].ReadOnly ||
		f.vm.cfg.Disks[1].Slot != 9 {
		t.Errorf("config %+v", f.vm.cfg)
	}
	// It was bad: for a while it is not made again, however often it is wished for.
	for range 3 {
		if err := f.Store.Request(f.shape); err != nil {
			t.Fatal(err)
		}
	}
	if due, err := f.Store.Due(2); len(due) > 0 || err != nil {
		t.Errorf("due after it was thrown away: %v, %v", due, err)
	}
}

// A maker that fails at any step leaves no template and no VM, and does not try the same
// shape again at once.
func TestMakeFailsAtEachStep(t *testing.T) {
	for _, step := range []string{"start", "resume", "prepare", "pause", "save", "kill", "size", "canceled"} {
		t.Run(step, func(t *testing.T) {
			f := newFixture(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch f.vm.fail = step; step {
			case "size":
				f.MaxBytes = pageSize
			case "canceled":
				f.Quiet = time.Hour
				f.Prepare = func(context.Context, vmm.Machine, string) (string, error) { cancel(); return "", nil }
			}
			if err := f.Store.Request(f.shape); err != nil {
				t.Fatal(err)
			}
			if err := f.Make(ctx, f.shape); err == nil {
				t.Fatal("made")
			}
			if f.vm.lives != 0 {
				t.Error("the VM lives")
			}
			if _, err := f.Store.Open(f.shape); !errdefs.IsNotFound(err) {
				t.Errorf("open: %v", err)
			}
			due, err := f.Store.Due(1)
			if again := len(due) > 0; err != nil || again != (step == "canceled") {
				t.Errorf("due: %v, %v", due, err)
			}
			if left, _ := filepath.Glob(filepath.Join(f.Store.Dir, ".*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// Every byte of a template is looked at before it runs: one that is changed anywhere is
// refused by Open or, for the RAM, by CopyRAM.
func TestDamage(t *testing.T) {
	f := newFixture(t)
	if err := f.Make(t.Context(), f.shape); err != nil {
		t.Fatal(err)
	}
	dir := f.Store.cache().Path(f.shape.Key())
	for _, name := range []string{headFile, stateFile, ramFile} {
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		bad := [][]byte{good[:len(good)/2], nil, append(bytes.Clone(good), 0)}
		for i := range 16 {
			b := bytes.Clone(good)
			b[i*(len(b)-1)/15] ^= 0x10
			bad = append(bad, b)
		}
		for i, b := range bad {
			if name == headFile && i == 2 {
				continue // a zero after the sum changes nothing
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			tp, err := f.Store.Open(f.shape)
			if err == nil {
				_, err = f.pour(t, tp)
				tp.Close()
			}
			if !errdefs.IsDataLoss(err) {
				t.Errorf("%s, damage %d: %v", name, i, err)
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tp, err := f.Store.Open(f.shape)
	if err != nil {
		t.Fatalf("repaired: %v", err)
	}
	tp.Close()
}

// A copy's NICs have their own addresses: each of the template's is replaced, and a state
// that does not have it once makes no template.
func TestReaddress(t *testing.T) {
	f := newFixture(t)
	f.shape.NICs = []int{4, 5}
	f.vm.state = "a" + string(mac(5)) + "b" + string(mac(4)) + "c"
	if err := f.Make(t.Context(), f.shape); err != nil {
		t.Fatal(err)
	}
	tp, err := f.Store.Open(f.shape)
	if err != nil {
		t.Fatal(err)
	}
	defer tp.Close()
	if err := tp.Readdress(map[int]string{4: "02:00:00:00:00:04", 5: "02:00:00:00:00:05"}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(f.vm.state))
	if _, err := tp.State.Read(got); err != nil || string(got) != "a\x02\x00\x00\x00\x00\x05b\x02\x00\x00\x00\x00\x04c" {
		t.Errorf("state %q, %v", got, err)
	}
	for _, state := range []string{"", string(mac(4)) + string(mac(5)) + string(mac(5))} {
		f := newFixture(t)
		f.shape.NICs, f.vm.state = []int{4, 5}, state
		if err := f.Make(t.Context(), f.shape); !errdefs.IsNotImplemented(err) {
			t.Errorf("state %q: %v", state, err)
		}
	}
}

// Wishes of many shims at once are all counted; a damaged one is dropped.
func TestRequests(t *testing.T) {
	f := newFixture(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := f.Store.Request(f.shape); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, times, err := f.Store.requested(f.shape.Key()); err != nil || times != 20 {
		t.Errorf("%d times, %v", times, err)
	}
	bad := filepath.Join(f.Store.Dir, requestsDir, strings.Repeat("0", 32))
	if err := os.WriteFile(bad, []byte("{}\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if due, err := f.Store.Due(2); err != nil || len(due) != 1 {
		t.Errorf("due %v, %v", due, err)
	}
	if _, err := os.Stat(bad); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("damaged wish: %v", err)
	}
	if _, err := f.Store.Lock(); !errdefs.IsUnavailable(err) {
		t.Errorf("second lock: %v", err)
	}
}
