package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/internal/dircache"
)

// Sweep keeps what was used last, within the limits, and nothing that is of no use.
func TestSweep(t *testing.T) {
	f := newFixture(t)
	var shapes []Shape
	for i := range 4 {
		s := f.shape
		s.VCPUs = i + 1
		shapes = append(shapes, s)
		if err := f.Make(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(f.Store.cache().Path(s.Key()), at, at); err != nil {
			t.Fatal(err)
		}
	}
	half := filepath.Join(f.Store.Dir, ".half")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	have := func() (out []int) {
		for i, s := range shapes {
			if tp, err := f.Store.Open(s); err == nil {
				out = append(out, i)
				tp.Close()
				at := time.Now().Add(time.Duration(i-10) * time.Minute)
				_ = os.Chtimes(f.Store.cache().Path(s.Key()), at, at)
			}
		}
		return out
	}
	size := uint64(0)
	if list, err := f.Store.cache().List(); err == nil {
		size = list[0].Size
	}
	all := func(Shape) bool { return true }
	for _, tt := range []struct {
		limits  dircache.Bounds
		current func(Shape) bool
		want    []int
	}{
		{dircache.Bounds{Count: 10, Bytes: 1 << 40}, all, []int{0, 1, 2, 3}},
		{dircache.Bounds{Count: 3, Bytes: 1 << 40}, all, []int{1, 2, 3}},
		{dircache.Bounds{Count: 10, Bytes: 2*size + 1}, all, []int{2, 3}},
		{dircache.Bounds{Count: 10, Bytes: 1 << 40}, func(s Shape) bool { return s.VCPUs != 3 }, []int{3}},
		{dircache.Bounds{Count: 10, Bytes: 1}, all, nil},
	} {
		if err := f.Store.Sweep(tt.limits, tt.current); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, have()); diff != "" {
			t.Errorf("limits %+v (-want +got):\n%s", tt.limits, diff)
		}
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a crash left: %v", err)
	}
}

// What the release before has left in the directory is used on where it fits, and goes where it does
// not: templates, half ones without a lock, wishes and refusals.
func TestTreeOfTheReleaseBefore(t *testing.T) {
	f := newFixture(t)
	old := f.shape
	old.Build = "the release before"
	for _, s := range []Shape{f.shape, old} {
		if err := f.Make(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	half := filepath.Join(f.Store.Dir, "."+old.Key())
	if err := errors.Join(os.Mkdir(half, 0o700), os.WriteFile(filepath.Join(half, "ram"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	wanted, refused := f.shape, f.shape
	wanted.VCPUs, refused.VCPUs = 2, 3
	for range 2 {
		if err := errors.Join(f.Store.Request(wanted), f.Store.Request(refused)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Store.refuse(refused.Key(), errFake); err != nil {
		t.Fatal(err)
	}
	err := f.Store.Sweep(dircache.Bounds{Count: 8, Bytes: 1 << 30}, func(s Shape) bool { return s.Build == f.shape.Build })
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.Store.List()
	if err != nil || len(list) != 1 || list[0].Key != f.shape.Key() || list[0].Shape.VCPUs != 1 || list[0].Bytes == 0 {
		t.Errorf("left %+v, %v", list, err)
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a template is left: %v", err)
	}
	if due, err := f.Store.Due(2); err != nil || len(due) != 1 || due[0].VCPUs != 2 {
		t.Errorf("due %v, %v", due, err)
	}
	if err := errors.Join(f.Store.Remove(f.shape.Key()), f.Store.Remove(f.shape.Key())); err != nil {
		t.Error(err)
	}
	if _, err := f.Store.Open(f.shape); !errdefs.IsNotFound(err) {
		t.Errorf("what was removed: %v", err)
	}
}
