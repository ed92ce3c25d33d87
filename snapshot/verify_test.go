package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

func (w *world) verify(t *testing.T, d digest.Digest) Verdict {
	t.Helper()
	s, err := Open(t.Context(), w.st, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Verify(t.Context(), VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Every bad frame is named, and only those.
func TestVerify(t *testing.T) {
	w := newWorld(t, 5)
	receipt, s := w.stored(t)
	clean := w.verify(t, receipt.Digest)
	if len(clean.Bad) != 0 || clean.Frames != len(s.index.Frames) || clean.Packs != len(s.index.Packs) ||
		clean.Bytes == 0 {
		t.Fatalf("verdict of a whole snapshot: %+v", clean)
	}
	pack := s.parts.packs[0].Digest
	frame := s.index.Frames[2]
	for _, c := range []struct {
		name string
		blob digest.Digest
		harm func(b []byte) []byte
		bad  []string // how each bad part begins, in order
	}{
		{"a bit in a frame", pack, func(b []byte) []byte { b[frame.Offset+1] ^= 1; return b }, []string{"frame 2 at "}},
		{"a pack without its last byte", pack, func(b []byte) []byte { return b[:len(b)-1] }, []string{"frame "}},
		{"a byte after a pack", pack, func(b []byte) []byte { return append(b, 0) }, []string{"pack sha256:"}},
		{"a bit in the state", s.parts.state.Digest, func(b []byte) []byte {
			b[0] ^= 1
			return b
		}, []string{"state sha256:"}},
		{"a short disk", s.parts.disks[0].Digest, func(b []byte) []byte { return b[:9] }, []string{"disk sha256:"}},
		{"a pack that is gone", pack, nil, []string{"pack sha256:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, err := os.ReadFile(w.blob(c.blob))
			if err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(w.blob(c.blob), whole, 0o600)
			if c.harm == nil {
				err = os.Remove(w.blob(c.blob))
			} else {
				err = os.WriteFile(w.blob(c.blob), c.harm(append([]byte(nil), whole...)), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			v := w.verify(t, receipt.Digest)
			if len(v.Bad) != len(c.bad) {
				t.Fatalf("bad: %+v", v.Bad)
			}
			for i, b := range v.Bad {
				if !strings.HasPrefix(b.Part, c.bad[i]) || !strings.HasSuffix(b.Part, c.blob.String()) {
					t.Errorf("bad part %q (%s)", b.Part, b.Reason)
				}
			}
		})
	}
}

// Without the store there is no verdict, neither a good nor a bad one.
func TestVerifyFailsAtEachCall(t *testing.T) {
	w := newWorld(t, 6)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		st := &faulty{Store: w.st, fail: n, err: errdefs.ErrPermissionDenied}
		s, err := Open(t.Context(), st, receipt.Digest, nil)
		if err == nil {
			_, err = s.Verify(t.Context(), VerifyOptions{Memory: 1})
		}
		if st.calls < n {
			if n < 6 || err != nil {
				t.Fatalf("%d calls, %v", st.calls, err)
			}
			return
		}
		if !errdefs.IsPermissionDenied(err) {
			t.Fatalf("call %d refused: %v", n, err)
		}
	}
}

func TestVerifyEnds(t *testing.T) {
	w := newWorld(t, 6)
	_, s := w.stored(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := os.RemoveAll(filepath.Join(w.dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Verify(ctx, VerifyOptions{}); err == nil {
		t.Errorf("verdict of a cancelled run: %+v", v)
	}
}
