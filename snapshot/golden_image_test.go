package snapshot

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"github.com/zeebo/xxh3"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/pagetable"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/snapshot/store/storetest"
)

func imageInfo() *GoldenInfo {
	return &GoldenInfo{
		Image: digest.FromString("image"), Name: "example.org/web:1", VMM: "qemu",
		Kernel: digest.FromString("kernel").String(),
		Memory: ramSize, VCPUs: 1,
	}
}

// fleet is a registry with a golden snapshot, and a VM of the same image that sleeps for
// the first time.
type fleet struct {
	*world
	registry *storetest.Registry
	golden   store.Store
	at       digest.Digest // of the golden snapshot
	first    Receipt
	fresh    int // pages of the VM that are in no golden snapshot
}

func newFleet(t *testing.T, r *storetest.Registry, keys Keys) *fleet {
	t.Helper()
	r.Apart = true
	f := &fleet{registry: storetest.Start(t, r)}
	f.golden = f.open(t, "golden")
	image := newWorld(t, 70)
	ram := randomBytes(rand.New(rand.NewPCG(7, 7)), ramSize)
	image.src.Spaces = []Space{{Name: "ram0", File: blobFile(t, "ram", ram)}}
	image.opts.Spec.Disks = image.opts.Spec.Disks[:1]
	image.opts.Make, image.opts.Tag, image.opts.Keys = imageInfo(), imageInfo().Tag(), keys
	var err error
	if f.first, err = Push(t.Context(), f.golden, image.src, image.opts); err != nil {
		t.Fatal(err)
	}
	f.at = f.first.Digest
	f.world = newWorld(t, 71)
	f.st, f.opts.Keys = f.open(t, "uid1"), keys
	f.opts.Source = func(string) (store.Store, error) { return f.golden, nil }
	// Another boot: most pages are those of the image, elsewhere in RAM.
	own := randomBytes(rand.New(rand.NewPCG(8, 8)), ramSize)
	for page := range ramSize / format.PageSize {
		if page%10 == 3 {
			f.fresh++
			continue
		}
		copy(own[page*format.PageSize:(page+1)*format.PageSize], ram[(page*7%(ramSize/format.PageSize))*format.PageSize:])
	}
	f.src.Spaces[0].File = blobFile(t, "ram", own)
	f.src.Spaces[1].File = blobFile(t, "rw", make([]byte, 1<<20+512))
	return f
}

func (f *fleet) open(t *testing.T, repository string) store.Store {
	t.Helper()
	st, err := store.Open(f.registry.Config(t, repository))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (f *fleet) table(t *testing.T) *Table {
	t.Helper()
	g, err := OpenGolden(t.Context(), f.golden, f.at, &f.opts.Keys)
	if err != nil {
		t.Fatal(err)
	}
	file := emptyFile(t, "golden.table")
	if err := g.Table(t.Context(), file, FillOptions{Repository: f.registry.Host() + "/golden"}); err != nil {
		t.Fatal(err)
	}
	table, err := OpenTable(file)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// The first snapshot of a VM stores only what the golden one of its image lacks, wherever in RAM a page lies. It
// does not need the golden one afterwards.
func TestFirstPushAgainstGolden(t *testing.T) {
	for name, keys := range map[string]Keys{"plain": {}, "sealed": {Locks: seal.Locks{Keys: []seal.Secret{secret(1)}}}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, &storetest.Registry{}, keys)
			f.opts.Golden = f.table(t)
			f.registry.Take()
			receipt, err := Push(t.Context(), f.st, f.src, f.opts)
			if err != nil {
				t.Fatal(err)
			}
			if want := uint64(f.fresh * format.PageSize); receipt.Figures.New != want {
				t.Errorf("%d bytes of pages are new, want %d", receipt.Figures.New, want)
			}
			up := int64(0)
			for _, q := range f.registry.Take() {
				up += q.Up
			}
			if up > int64(f.fresh*format.PageSize*5/4)+400_000 { // state, read-only disk, index
				t.Errorf("%d bytes went to the registry, %d of pages are new", up, f.fresh*format.PageSize)
			}
			t.Logf("golden %d, first snapshot %d bytes pushed of %d resident", f.first.Figures.Pushed, receipt.Figures.Pushed,
				receipt.Figures.Resident)
			f.registry.Forget("golden") // deleted and collected while it is a parent
			f.restore(t, receipt.Digest)
		})
	}
}

// What the second push inherits of the golden packs it names once, though both tables have
// them.
func TestParentAndGolden(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	f.opts.Golden = f.table(t)
	first, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := f.restore(t, first.Digest)
	// Pages of the image that the first snapshot had not, and of the first one, move.
	ram := randomBytes(rand.New(rand.NewPCG(7, 7)), ramSize)
	if _, err := r.ram.WriteAt(ram[3<<20:], 1<<20); err != nil {
		t.Fatal(err)
	}
	f.src.Spaces[0].File, f.src.Spaces[1].File, f.opts.Ref.Operation = r.ram, r.disk, "op2"
	if f.opts.Parent, err = OpenTable(r.table); err != nil {
		t.Fatal(err)
	}
	f.opts.Golden = f.table(t)
	second, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	if second.Figures.New != 0 {
		t.Errorf("%d bytes of pages were stored that parent and golden snapshot have", second.Figures.New)
	}
	f.restore(t, second.Digest)
}

// A registry that mounts nothing gets the packs from here; one whose golden snapshot has
// gone gets the pages.
func TestGoldenPacksElsewhere(t *testing.T) {
	for _, c := range []struct {
		name               string
		noMount, gone, all bool
	}{
		{name: "copied", noMount: true},
		{name: "gone", gone: true, all: true},
		{name: "gone, no mount", noMount: true, gone: true, all: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, &storetest.Registry{NoMount: c.noMount}, Keys{})
			f.opts.Golden = f.table(t)
			if c.gone {
				f.registry.Forget("golden")
			}
			receipt, err := Push(t.Context(), f.st, f.src, f.opts)
			if err != nil {
				t.Fatal(err)
			}
			if all := receipt.Figures.New == receipt.Figures.Resident; all != c.all {
				t.Errorf("%d of %d bytes of pages were stored", receipt.Figures.New, receipt.Figures.Resident)
			}
			f.registry.Forget("golden")
			f.restore(t, receipt.Digest)
		})
	}
}

// A page that collides with one of a golden snapshot, in a guest or in the store, comes to no other VM: sums find,
// hashes by a key of this node decide.
func TestPoisonedGolden(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	table := f.table(t)
	ram, err := os.ReadFile(f.src.Spaces[0].File.Name())
	if err != nil {
		t.Fatal(err)
	}
	// Each page of the VM has the sum of some other page.
	for page := range len(ram) / format.PageSize {
		e := &table.entries[(page+1)%len(table.entries)]
		e.Sum = xxh3.HashSeed(ram[page*format.PageSize:(page+1)*format.PageSize], table.seed)
	}
	table.sums = pagetable.NewSums(len(table.entries))
	for i := range table.entries {
		table.sums.Add(table.entries, uint32(i))
	}
	f.opts.Golden = table
	receipt, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	f.restore(t, receipt.Digest)

	// One who can write to the store says that pages are where others lie.
	snap, err := OpenGolden(t.Context(), f.golden, f.at, &Keys{})
	if err != nil {
		t.Fatal(err)
	}
	runs := snap.pages.index.Spaces[0].Runs
	for i := range runs {
		if k := len(runs) - 1 - i; i < k {
			runs[i].Frame, runs[k].Frame = runs[k].Frame, runs[i].Frame
		}
	}
	if snap.pages.indexBlob, err = snap.pages.index.Encode(); err != nil {
		t.Fatal(err)
	}
	file := emptyFile(t, "table")
	if err := snap.Table(t.Context(), file, FillOptions{Repository: f.registry.Host() + "/golden"}); err != nil {
		t.Fatal(err)
	}
	if f.opts.Golden, err = OpenTable(file); err != nil {
		t.Fatal(err)
	}
	f.opts.Ref.Operation = "op2"
	if receipt, err = Push(t.Context(), f.st, f.src, f.opts); err != nil {
		t.Fatal(err)
	}
	f.restore(t, receipt.Digest)

	// Or puts other bytes there.
	f.registry.Play(func(_ int, q *http.Request) storetest.Fault {
		if q.Method == http.MethodGet &&
			strings.HasSuffix(q.URL.Path, "/blobs/"+packDescriptor(snap.pages.index.Packs[0]).Digest.String()) {
			return storetest.Fault{Status: http.StatusOK, Body: strings.Repeat("x", int(snap.pages.index.Packs[0].Size))}
		}
		return storetest.Fault{}
	})
	if err := snap.Table(t.Context(), emptyFile(t, "table"), FillOptions{}); !errdefs.IsDataLoss(err) {
		t.Errorf("other bytes in a pack: %v", err)
	}
}

// A golden snapshot is none of a VM: nothing opens it as one, and no snapshot is opened as
// a golden one.
func TestGoldenIsNoSnapshot(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	if _, err := Open(t.Context(), f.golden, f.at, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a golden snapshot is opened: %v", err)
	}
	list, err := List(t.Context(), f.golden)
	if err != nil || len(list) != 1 || list[0].Err == nil {
		t.Errorf("listed as snapshots: %+v, %v", list, err)
	}
	receipt, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenGolden(t.Context(), f.st, receipt.Digest, &Keys{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a snapshot is opened as a golden one: %v", err)
	}
}

// Keys: another set opens nothing and says which it lacks; a push that does not seal, or
// does, refers to nothing of the other kind.
func TestGoldenKeys(t *testing.T) {
	mine := Keys{Locks: seal.Locks{Keys: []seal.Secret{secret(1)}}}
	f := newFleet(t, &storetest.Registry{}, mine)
	other := Keys{Locks: seal.Locks{Keys: []seal.Secret{secret(2)}}}
	if _, err := OpenGolden(t.Context(), f.golden, f.at, &other); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "seal.key_files") {
		t.Errorf("opened without the key: %v", err)
	}
	table := f.table(t)
	if table.Fits(false) || !table.Fits(true) {
		t.Error("a sealed golden snapshot fits a push that does not seal")
	}
	f.opts.Golden, f.opts.Keys = table, Keys{}
	receipt, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	if receipt.Figures.New != receipt.Figures.Resident {
		t.Error("a snapshot that is not sealed refers to sealed pages")
	}
	f.restore(t, receipt.Digest)

	plain := newFleet(t, &storetest.Registry{}, Keys{})
	if _, err := OpenGolden(t.Context(), plain.golden, plain.at,
		&Keys{Locks: seal.Locks{Required: true, Keys: mine.Locks.Keys}}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("taken unsealed where seal.required is set: %v", err)
	}
}

// Whichever request fails while a golden snapshot is read, there is no table. If one fails while it is used, the
// push ends with a snapshot that is right, or with none.
func TestGoldenFailsAtEachRequest(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	f.registry.Take()
	table := func(ctx context.Context) error {
		g, err := OpenGolden(ctx, f.golden, f.at, &Keys{})
		if err == nil {
			err = g.Table(ctx, emptyFile(t, "table"), FillOptions{})
		}
		return err
	}
	if err := table(t.Context()); err != nil {
		t.Fatal(err)
	}
	fail := func(at int) {
		f.registry.Take()
		f.registry.Play(func(n int, _ *http.Request) storetest.Fault {
			if n >= at {
				return storetest.Fault{Status: http.StatusForbidden}
			}
			return storetest.Fault{}
		})
	}
	for n := range len(f.registry.Take()) {
		fail(n + 1)
		if err := table(t.Context()); !errdefs.IsPermissionDenied(err) {
			t.Errorf("request %d refused: %v", n+1, err)
		}
	}
	once := func(at int) {
		f.registry.Take()
		f.registry.Play(func(n int, _ *http.Request) storetest.Fault {
			if n == at {
				return storetest.Fault{Status: http.StatusForbidden}
			}
			return storetest.Fault{}
		})
	}
	f.registry.Play(nil)
	f.registry.Take()
	golden := f.table(t)
	f.opts.Golden = golden
	f.registry.Take()
	if _, err := Push(t.Context(), f.st, f.src, f.opts); err != nil {
		t.Fatal(err)
	}
	for n := range len(f.registry.Take()) {
		f.registry.Play(nil)
		f.registry.Forget("uid1")
		f.opts.Golden, f.opts.Ref.Operation = f.table(t), fmt.Sprint("op", n)
		once(n + 1)
		receipt, err := Push(t.Context(), f.st, f.src, f.opts)
		f.registry.Play(nil)
		if err != nil {
			if !errdefs.IsPermissionDenied(err) || receipt.Digest != "" {
				t.Errorf("request %d refused: %q, %v", n+1, receipt.Digest, err)
			}
			continue
		}
		f.restore(t, receipt.Digest)
	}
}

// A golden snapshot that goes between its packs' mount and the commit costs the attempt,
// not the VM: nothing is stored, and the next one stores what is lacking.
func TestGoldenGoesMeanwhile(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	f.opts.Golden = f.table(t)
	f.opts.Captured = func() { f.registry.Forget("golden"); f.registry.Forget("uid1") }
	if r, err := Push(t.Context(), f.st, f.src, f.opts); !errdefs.IsAborted(err) {
		t.Errorf("packs that have gone: %q, %v", r.Digest, err)
	}
	if tags, err := f.st.Tags(t.Context()); err != nil || len(tags) != 0 {
		t.Errorf("tags %v, %v", tags, err)
	}
	f.opts.Captured = nil
	receipt, err := Push(t.Context(), f.st, f.src, f.opts)
	if err != nil {
		t.Fatal(err)
	}
	f.restore(t, receipt.Digest)
}
