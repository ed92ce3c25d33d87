package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/store"
)

// world is a VM's files and a store.
type world struct {
	src  Source
	opts Options
	st   store.Store
	dir  string // of the layout
}

const ramSize = 6 << 20

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	ram := sparse(t, rng, "ram", ramSize)
	disk := sparse(t, rng, "rw", 1<<20+512) // its last page is partial
	state := blobFile(t, "state", randomBytes(rng, 10_000))
	base := randomBytes(rng, 300_000)
	d := digest.FromBytes(base)
	w := &world{dir: filepath.Join(t.TempDir(), "layout", "uid1")}
	w.src = Source{
		Spaces: []Space{{Name: "ram0", File: ram}, {Name: "disk0", Disk: "rw", File: disk}},
		State:  state,
		Disks:  []Disk{{ID: "layer0", Digest: d, File: blobFile(t, "base", base)}},
	}
	w.opts = Options{
		Ref: testRef(),
		Spec: &spec.Spec{
			Version: 1, Namespace: "default", ID: "vm1", UID: "uid1", Memory: ramSize, VCPUs: 1,
			VMM: spec.VMM{Name: "qemu"},
			Disks: []spec.Disk{
				{ID: "layer0", Serial: "layer0", ReadOnly: true, Type: "erofs", Size: 300_000, Digest: d.String()},
				{ID: "rw", Serial: "rw", Type: "ext4", Size: 1<<20 + 512},
			},
		},
		Facts:  Facts{VMM: "qemu", Version: "7.2", Kernel: "6.18"},
		Resume: json.RawMessage(`{"offset":7}`),
	}
	var err error
	if w.st, err = store.NewLayout(w.dir); err != nil {
		t.Fatal(err)
	}
	return w
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
}

func blobFile(t *testing.T, name string, data []byte) *os.File {
	t.Helper()
	f := emptyFile(t, name)
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func emptyFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// sparse makes a file of holes, zero pages, text, noise and repeated pages.
func sparse(t *testing.T, rng *rand.Rand, name string, size int64) *os.File {
	t.Helper()
	f := emptyFile(t, name)
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	var last []byte
	for off := int64(0); off < size; {
		n := min(size-off, int64(1+rng.IntN(60))*format.PageSize)
		var data []byte
		switch rng.IntN(5) {
		case 0: // a hole
		case 1:
			data = make([]byte, n)
		case 2:
			data = bytes.Repeat([]byte{byte(rng.Uint32()), 'a', 'b', byte(rng.Uint32())}, int(n)/4+1)[:n]
		case 3:
			data = randomBytes(rng, int(n))
			last = data
		case 4:
			data = last[:min(int64(len(last)), n)]
		}
		if _, err := f.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
		off += n
	}
	return f
}

func sumFile(t *testing.T, f *os.File) [32]byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// content is how many bytes a file has in pages that are not zero.
func content(t *testing.T, f *os.File) (n uint64) {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	for page := range slices.Chunk(data, format.PageSize) {
		if !bytes.Equal(page, make([]byte, len(page))) {
			n += format.PageSize
		}
	}
	return n
}

// restored is what a restore gave.
type restored struct {
	snap             *Snapshot
	ram, disk, table *os.File
}

// stored pushes a snapshot and opens it.
func (w *world) stored(t *testing.T) (Receipt, *Snapshot) {
	t.Helper()
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), w.st, receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	return receipt, s
}

func (w *world) restore(t *testing.T, d digest.Digest) restored {
	t.Helper()
	s, err := OpenWith(t.Context(), w.st, d, &w.opts.Ref, &w.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	r := restored{snap: s, ram: emptyFile(t, "ram"), disk: emptyFile(t, "disk"), table: emptyFile(t, "table")}
	err = s.Fill(t.Context(), map[string]*os.File{"ram0": r.ram, "disk0": r.disk}, FillOptions{Table: r.table})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sumFile(t, r.ram), sumFile(t, w.src.Spaces[0].File); got != want {
		t.Error("RAM differs after a restore")
	}
	if got, want := sumFile(t, r.disk), sumFile(t, w.src.Spaces[1].File); got != want {
		t.Error("disk differs after a restore")
	}
	return r
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(t, seed)
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		r := w.restore(t, receipt.Digest)
		_, all := r.snap.Bytes()
		ram, disks := content(t, w.src.Spaces[0].File), content(t, w.src.Spaces[1].File)
		if r.snap.RAM() != ram || all != ram+disks || disks == 0 {
			t.Errorf("%d bytes of pages, %d of RAM; the files have %d and %d", all, r.snap.RAM(), ram+disks, ram)
		}
		var state, disk bytes.Buffer
		if err := r.snap.State(t.Context(), &state); err != nil {
			t.Error(err)
		}
		if err := r.snap.Disk(t.Context(), w.src.Disks[0].Digest, &disk); err != nil {
			t.Error(err)
		}
		if sha256.Sum256(state.Bytes()) != sumFile(t, w.src.State) ||
			digest.FromBytes(disk.Bytes()) != w.src.Disks[0].Digest {
			t.Error("state or read-only disk differ after a restore")
		}
		t.Logf("%+v", receipt.Figures)
	}
}

// A second push after a wake stores what changed, and is whole on its own.
func TestSecondPushIsSmall(t *testing.T) {
	w := newWorld(t, 7)
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	rng := rand.New(rand.NewPCG(9, 9))
	if _, err := r.ram.WriteAt(randomBytes(rng, 10*format.PageSize), 3<<20); err != nil {
		t.Fatal(err)
	}
	w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
	w.opts.Ref.Generation, w.opts.Ref.Operation = 4, "op2"
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	second, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	if second.Figures.New != 10*format.PageSize {
		t.Errorf("second push stored %d bytes of pages, want %d", second.Figures.New, 10*format.PageSize)
	}
	if second.Figures.Pushed*4 > first.Figures.Pushed {
		t.Errorf("second push sent %d bytes, the first %d", second.Figures.Pushed, first.Figures.Pushed)
	}
	w.restore(t, second.Digest)
}

func testRef() Ref {
	return Ref{VM: "default/vm1", UID: "uid1", Operation: "op1", Attempt: 1, Generation: 3}
}

// A pack that the store has lost is pushed again from the pages that are here; a store
// that cannot say fails the push.
func TestLostParentPack(t *testing.T) {
	w := newWorld(t, 12)
	noise := randomBytes(rand.New(rand.NewPCG(3, 3)), 18<<20) // more than one pack
	w.src.Spaces[0].File, w.opts.Spec.Memory = blobFile(t, "ram", noise), uint64(len(noise))
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	w.src.Spaces[0].File, w.src.Spaces[1].File = r.ram, r.disk
	if err := os.Remove(w.blob(packDescriptor(r.snap.index.Packs[0]).Digest)); err != nil {
		t.Fatal(err)
	}
	w.opts.Ref.Operation = "op2"
	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	second, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	if second.Figures.New == 0 || second.Figures.New >= first.Figures.New {
		t.Errorf("pages pushed again: %d of %d bytes", second.Figures.New, first.Figures.New)
	}
	w.restore(t, second.Digest)

	if w.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	f := &faulty{Store: w.st, fail: 2, err: errdefs.ErrUnavailable} // after the state
	if _, err := Push(t.Context(), f, w.src, w.opts); !errdefs.IsUnavailable(err) {
		t.Errorf("store that cannot say which packs it has: %v", err)
	}
}

// A table whose writer was killed is no table.
func TestUnfinishedTable(t *testing.T) {
	f := emptyFile(t, "table")
	if _, err := pagetable.NewWriter(f, "repo", []byte("index"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTable(f); !errdefs.IsNotFound(err) {
		t.Errorf("unfinished table: %v", err)
	}
}

// A sum that collides, as a guest could arrange, never makes two pages one.
func TestSumAloneDecidesNothing(t *testing.T) {
	w := newWorld(t, 13)
	first, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, first.Digest)
	table, err := OpenTable(r.table)
	if err != nil {
		t.Fatal(err)
	}
	h := pagetable.NewHasher(table.key)
	page := bytes.Repeat([]byte{1}, format.PageSize)
	if f, _ := table.find(&h, table.entries[0].Sum, page); f != nil {
		t.Error("the parent's page was found by its sum alone")
	}
	o := origin{place: place{area: precopy.NewArea(w.src.Spaces[0], 0, ramSize)}, frame: new(frame)} // of the same sum
	if same, err := o.same(o.sum, page, new([format.PageSize]byte)); err != nil || same {
		t.Errorf("a page of another content is the same: %v, %v", same, err)
	}
}

// Holes are not read: neither source nor destination gets a page that is not there.
func TestSparseStaysSparse(t *testing.T) {
	w := newWorld(t, 14)
	ram := emptyFile(t, "ram")
	if err := ram.Truncate(ramSize); err != nil {
		t.Fatal(err)
	}
	if _, err := ram.WriteAt(bytes.Repeat([]byte{7}, 100), 3<<20); err != nil {
		t.Fatal(err)
	}
	w.src.Spaces[0].File = ram
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := w.restore(t, receipt.Digest)
	for name, f := range map[string]*os.File{"source": ram, "destination": r.ram} {
		var st syscall.Stat_t
		if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 > 64<<10 {
			t.Errorf("%s takes %d bytes for one page", name, st.Blocks*512)
		}
	}
}
