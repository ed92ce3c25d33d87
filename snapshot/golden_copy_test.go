package snapshot

import (
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/store/storetest"
)

// A golden snapshot that was copied has the same digest, and is found there by its image and shape.
// Nodes there read it as one of their own, sealed or not; what is there is not sent again.
func TestGoldenIsCopied(t *testing.T) {
	for name, keys := range map[string]Keys{"plain": {}, "sealed": {Locks: seal.Locks{Keys: []seal.Secret{secret(1)}}}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, &storetest.Registry{}, keys)
			g, err := OpenGolden(t.Context(), f.golden, f.at, &keys)
			if err != nil {
				t.Fatal(err)
			}
			to := layout(t, filepath.Join(t.TempDir(), "golden"))
			done, err := g.Copy(t.Context(), to, CopyOptions{Tag: "of-no-use"})
			if err != nil || done.Digest != f.at || done.Tag != imageInfo().Tag() || done.Sent != done.Total {
				t.Fatalf("%+v, %v", done, err)
			}
			list, err := ListGolden(t.Context(), to)
			if err != nil || len(list) != 1 || list[0].Digest != f.at || list[0].Info.Name != imageInfo().Name {
				t.Errorf("listed there: %+v, %v", list, err)
			}
			there, err := OpenGolden(t.Context(), to, f.at, &keys)
			if err != nil {
				t.Fatal(err)
			}
			if err := there.Table(t.Context(), blobFile(t, "table", nil), FillOptions{}); err != nil {
				t.Errorf("read there: %v", err)
			}
			if again, err := g.Copy(t.Context(), to, CopyOptions{}); err != nil || again.Sent > 64<<10 {
				t.Errorf("once more: %+v, %v", again, err)
			}
		})
	}
}

// Whichever call of the destination fails, none of it is found there.
func TestGoldenCopyFailsAtEachCall(t *testing.T) {
	f := newFleet(t, &storetest.Registry{}, Keys{})
	g, err := OpenGolden(t.Context(), f.golden, f.at, &Keys{})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		inner := layout(t, filepath.Join(t.TempDir(), "golden"))
		to := &faulty{Store: inner, err: errdefs.ErrPermissionDenied, fail: n}
		_, err := g.Copy(t.Context(), to, CopyOptions{})
		if n > to.calls {
			if err != nil || n < 5 {
				t.Fatalf("%d calls: %v", to.calls, err)
			}
			return
		}
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("call %d fails: %v", n, err)
		}
		if list, err := ListGolden(t.Context(), inner); err != nil || len(list) > 0 && n < to.calls {
			t.Errorf("call %d fails: there is %v, %v", n, list, err)
		}
	}
}
