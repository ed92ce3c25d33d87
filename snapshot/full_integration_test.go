//go:build integration

package snapshot

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// tiny is a file of a tmpfs that has next to no room.
func tiny(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("godwit-test", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A restore whose files find no room ends with ResourceExhausted and names what was full. The snapshot is as it
// was, and a restore where there is room succeeds.
func TestFillWithoutRoom(t *testing.T) {
	w := newWorld(t, 41)
	receipt, err := Push(t.Context(), w.st, w.src, w.opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"ram": "ram0", "disk": "disk0", "table": "page table"} {
		t.Run(name, func(t *testing.T) {
			files := map[string]*os.File{}
			for _, f := range []string{"ram", "disk", "table"} {
				if files[f] = emptyFile(t, f); f == name {
					files[f] = full(t)
				}
			}
			s, err := Open(t.Context(), w.st, receipt.Digest, &w.opts.Ref)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Fill(t.Context(), map[string]*os.File{"ram0": files["ram"], "disk0": files["disk"]},
				FillOptions{Table: files["table"]})
			if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("fill: %v", err)
			}
		})
	}
	w.restore(t, receipt.Digest)
}

// A destination without room refuses the VM, and its source hears why; without room for the page
// table alone the VM goes.
func TestMoveWithoutRoom(t *testing.T) {
	w := newWorld(t, 42)
	_, _, table := w.goesOn(t, 5, func(*guest) Tracker { return nil })
	for name, c := range map[string]struct {
		spoil func(*testing.T, *arrival)
		goes  bool
	}{
		"ram":   {func(t *testing.T, a *arrival) { a.ram = full(t); a.target.Spaces[0].File = a.ram }, false},
		"disk":  {func(t *testing.T, a *arrival) { a.disk = full(t); a.target.Spaces[1].File = a.disk }, false},
		"state": {func(t *testing.T, a *arrival) { a.state = full(t); a.target.State = a.state }, false},
		"table": {func(t *testing.T, a *arrival) { a.target.Table = full(t) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(w, 6)
			close(g.stopped)
			a := newArrival(t, w, false)
			a.target.Table = emptyFile(t, "table")
			c.spoil(t, a)
			o := w.sending(g, nil)
			o.Table, o.Budget = table, 0
			from, to := secure(t)
			sent, err, rerr := move(t, w, a, o, from, to)
			if !c.goes {
				if !errdefs.IsResourceExhausted(err) || !errdefs.IsResourceExhausted(rerr) || a.loaded != 0 {
					t.Errorf("source %v, destination %v, loaded %d", err, rerr, a.loaded)
				}
				return
			}
			if err != nil || rerr != nil {
				t.Fatal(err, rerr)
			}
			a.check(t, w, g, sent)
			if _, err := OpenTable(a.target.Table); !errdefs.IsNotFound(err) {
				t.Errorf("a table that found no room: %v", err)
			}
		})
	}
}

// full is an empty file of a tmpfs that another one fills.
func full(t *testing.T) *os.File {
	t.Helper()
	other := tiny(t)
	if _, err := io.CopyN(other, zeros{}, 256<<10); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(other.Name() + "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
