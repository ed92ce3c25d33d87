package snapshot

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/snapshot/format"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A copy has the same digest and restores the same bytes; what is there is not sent again.
func TestCopy(t *testing.T) {
	w := newWorld(t, 4)
	from := storetest.Start(t, &storetest.Registry{})
	receipt, err := Push(t.Context(), opened(t, from), w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), opened(t, from), receipt.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	from.Take()
	to := opened(t, storetest.Start(t, &storetest.Registry{}))
	done, err := s.Copy(t.Context(), to, CopyOptions{Tag: "backup"})
	if err != nil || done.Digest != receipt.Digest || done.Total != receipt.Figures.Total || done.Sent != done.Total {
		t.Fatalf("%+v, %v", done, err)
	}
	// manifest, packs; config, state, index, disk; a signature, if there were one
	if n := storetest.Count(from.Take(), "GET"); n != 1+len(s.index.Packs)+5 {
		t.Errorf("%d downloads for a copy of %d packs", n, len(s.index.Packs))
	}
	again, err := s.Copy(t.Context(), to, CopyOptions{})
	if err != nil || again.Tag != "g3-op1" || again.Sent > 64<<10 {
		t.Errorf("a second copy: %+v, %v", again, err)
	}
	copied, err := Open(t.Context(), to, receipt.Digest, &w.opts.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := copied.Verify(t.Context(), VerifyOptions{}); err != nil || len(v.Bad) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// Whichever call fails, on either side, there is no snapshot at the destination; a source
// that is damaged is not copied.
func TestCopyFailsAtEachCall(t *testing.T) {
	w := newWorld(t, 4)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []bool{false, true} {
		for n := 1; ; n++ {
			from, to := &faulty{Store: w.st, err: errdefs.ErrPermissionDenied},
				&faulty{Store: layout(t, filepath.Join(t.TempDir(), "l")), err: errdefs.ErrPermissionDenied}
			s, err := Open(t.Context(), from, receipt.Digest, nil)
			if err != nil {
				t.Fatal(err)
			}
			from.calls = 0
			f := to
			if source {
				f = from
			}
			f.fail = n
			_, err = s.Copy(t.Context(), to, CopyOptions{})
			if n > f.calls {
				if err != nil || n < 5 {
					t.Fatalf("%d calls: %v", f.calls, err)
				}
				break
			}
			if !errdefs.IsPermissionDenied(err) {
				t.Errorf("call %d fails: %v", n, err)
			}
			if tags, err := to.Store.Tags(t.Context()); err != nil || len(tags) != 0 && n < f.calls {
				t.Errorf("call %d fails: tags %v, %v", n, tags, err)
			}
		}
	}
}

// Diff counts by content: pages that moved to other packs are the same.
func TestDiff(t *testing.T) {
	w := newWorld(t, 5)
	push := func(op string) *Snapshot {
		t.Helper()
		w.opts.Ref.Operation = op
		receipt, err := Push(t.Context(), w.st, w.src, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), w.st, receipt.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := push("a")
	pages := placed(before.index, "ram0").pages
	ram := w.src.Spaces[0].File
	rng := rand.New(rand.NewPCG(9, 9))
	want := SpaceDiff{Name: "ram0", FromSize: ramSize, ToSize: ramSize, Same: uint64(len(pages))}
	for page := range uint64(ramSize / format.PageSize) {
		data := randomBytes(rng, format.PageSize)
		_, was := pages[page]
		switch {
		case page%7 != 0:
			continue
		case was && page%2 == 0:
			data = make([]byte, format.PageSize)
			want.Removed++
			want.Same--
		case was:
			want.Changed++
			want.Same--
		default:
			want.Added++
		}
		if _, err := ram.WriteAt(data, int64(page*format.PageSize)); err != nil {
			t.Fatal(err)
		}
	}
	after := push("b")
	got, err := Diff(t.Context(), before, after)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got[0]); diff != "" || want.Changed == 0 || want.Added == 0 || want.Removed == 0 {
		t.Errorf("ram0 (-want +got):\n%s", diff)
	}
	if d := got[1]; d.Name != "disk0" || d.Changed+d.Added+d.Removed != 0 || d.Same == 0 {
		t.Errorf("disk0: %+v", d)
	}
}
