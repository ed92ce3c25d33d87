package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
)

func emptyFile(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

var (
	testDisk  = []byte("a read-only disk")
	testTable = []byte("a page table")
)

// target is a small VM: 8 pages of RAM, and a disk that is lacked.
func target(t testing.TB) Target {
	return Target{
		Ref: Ref{VM: "ns/vm", UID: "u", Operation: "op", Attempt: 1, Generation: 2}, State: emptyFile(t, "state"),
		Spaces: []TargetSpace{{Area: Area{Name: "ram0", Size: 8 * format.PageSize}, File: emptyFile(t, "ram")}},
		Disks: []TargetDisk{{Blob: Blob{ID: "d", Digest: digest.FromBytes(testDisk), Size: int64(len(testDisk))},
			File: emptyFile(t, "disk")}},
		Table:    emptyFile(t, "table"),
		Complete: func(context.Context) error { return nil },
		Load:     func(context.Context, string, End, *Written) error { return nil },
	}
}

// wire is a connection whose other end has said all that it will say.
type wire struct {
	io.Reader
	out bytes.Buffer
}

func (w *wire) Write(p []byte) (int, error) { return w.out.Write(p) }
func (w *wire) Close() error                { return nil }

// said is what a source says that moves the VM of target.
func said(t testing.TB) []byte {
	t.Helper()
	ctx, to := context.Background(), target(t)
	var all bytes.Buffer
	w := NewWriter(&all, 0)
	disk, state, table := emptyFile(t, "d"), emptyFile(t, "s"), emptyFile(t, "t")
	if _, err := table.Write(testTable); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Write(testDisk); err != nil {
		t.Fatal(err)
	}
	if _, err := state.WriteString("state"); err != nil {
		t.Fatal(err)
	}
	var coder format.Coder
	defer coder.Close()
	raw := bytes.Repeat([]byte{7}, 2*format.PageSize)
	steps := []error{
		w.JSON(ctx, KindHello, Hello{Version: version.Pages, Ref: to.Ref, Spaces: []Area{to.Spaces[0].Area},
			Disks: []Blob{to.Disks[0].Blob}, Table: int64(len(testTable)), Reached: true}),
		w.Copy(ctx, KindDisk, 0, disk, int64(len(testDisk))),
		w.Copy(ctx, KindTable, 0, table, int64(len(testTable))),
		w.Barrier(ctx),
		w.Pages(ctx, &coder, &Packet{}, format.S2, 0, []uint64{1, 2}, raw),
		w.Pages(ctx, &coder, &Packet{}, format.Raw, 0, []uint64{5, 3}, raw),
		w.Barrier(ctx),
		w.Zeros(ctx, 0, [][2]uint64{{2, 1}}),
		w.Copy(ctx, KindState, 0, state, 5),
	}
	for i, err := range steps {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	if _, err := w.End(ctx, []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	return all.Bytes()
}

func TestReceive(t *testing.T) {
	to, w := target(t), &wire{Reader: bytes.NewReader(said(t))}
	if err := Receive(t.Context(), w, to); err != nil {
		t.Fatal(err)
	}
	ram, _ := os.ReadFile(to.Spaces[0].File.Name())
	for i := range 8 {
		want := byte(0)
		if i == 1 || i == 3 || i == 5 {
			want = 7
		}
		if !bytes.Equal(ram[i*format.PageSize:(i+1)*format.PageSize], bytes.Repeat([]byte{want}, format.PageSize)) {
			t.Errorf("page %d is not of %d", i, want)
		}
	}
	in := NewReader(&w.out, 1)
	if a, err := in.Accept(); err != nil || len(a.Disks) != 1 || !a.Table || !a.Reached {
		t.Errorf("accepted %+v, %v", a, err)
	}
	if table, _ := os.ReadFile(to.Table.Name()); string(table) != string(testTable) {
		t.Errorf("page table %q", table)
	}
	var reached []uint64
	r, err := in.Ready(func(barrier uint64) { reached = append(reached, barrier) })
	if err != nil || !strings.HasPrefix(r.Digest, DigestPrefix) {
		t.Errorf("ready %+v, %v", r, err)
	}
	if !slices.Equal(reached, []uint64{1, 2}) {
		t.Errorf("barriers reached: %v", reached)
	}
}

// A page table is never in the way of a move. One that is too large is not taken. A destination
// that has no place for one takes none. One that cannot be written is given up.
func TestReceiveLeavesTables(t *testing.T) {
	closed := func(t *testing.T) *os.File {
		f := emptyFile(t, "closed")
		f.Close()
		return f
	}
	for name, c := range map[string]struct {
		file  func(*testing.T) *os.File
		size  int64
		taken bool
	}{
		"no place": {file: func(*testing.T) *os.File { return nil }, size: 1},
		"too large": {file: func(t *testing.T) *os.File {
			return emptyFile(t, "table")
		}, size: tableBound([]Area{target(t).Spaces[0].Area}) + 1},
		"none":    {file: func(t *testing.T) *os.File { return emptyFile(t, "table") }},
		"no room": {file: closed, size: 3, taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			to := target(t)
			to.Table, to.Disks[0].File = c.file(t), nil
			var all bytes.Buffer
			w := NewWriter(&all, 0)
			steps := []error{w.JSON(t.Context(), KindHello, Hello{Version: version.Pages, Ref: to.Ref,
				Spaces: []Area{to.Spaces[0].Area}, Disks: []Blob{to.Disks[0].Blob}, Table: c.size})}
			if c.taken {
				table := emptyFile(t, "t")
				steps = append(steps, table.Truncate(c.size), w.Copy(t.Context(), KindTable, 0, table, c.size))
			}
			_, err := w.End(t.Context(), nil)
			if err = errors.Join(append(steps, err)...); err != nil {
				t.Fatal(err)
			}
			conn := &wire{Reader: &all}
			if err := Receive(t.Context(), conn, to); err != nil {
				t.Fatal(err)
			}
			if a, err := NewReader(&conn.out, 1).Accept(); err != nil || a.Table != c.taken {
				t.Errorf("accepted %+v, %v", a, err)
			}
		})
	}
}

// What is not the stream of this build is refused by its class, from any sender: another number
// of disks, or another disk under that name, too.
func TestReceiveRefuses(t *testing.T) {
	to := target(t)
	hello := func(change func(*Hello)) func(w *Writer) error {
		h := Hello{Version: version.Pages, Ref: to.Ref, Spaces: []Area{to.Spaces[0].Area}, Disks: []Blob{to.Disks[0].Blob}}
		change(&h)
		return func(w *Writer) error { return w.JSON(t.Context(), KindHello, h) }
	}
	packet := func(kind Kind, codec format.Codec, space int, body ...byte) func(*Writer) error {
		return func(w *Writer) error {
			p := &Packet{}
			p.reset()
			p.add(body...)
			return w.send(t.Context(), p, kind, codec, space)
		}
	}
	good, tabled := hello(func(*Hello) {}), hello(func(h *Hello) { h.Table = 2 })
	for name, c := range map[string]struct {
		say  []func(*Writer) error
		want func(error) bool
	}{
		"another version": {[]func(*Writer) error{hello(func(h *Hello) { h.Version++ })}, errdefs.IsNotImplemented},
		"another VM": {[]func(*Writer) error{hello(func(h *Hello) {
			h.Ref.UID = "x"
		})}, errdefs.IsFailedPrecondition},
		"no spaces": {[]func(*Writer) error{hello(func(h *Hello) { h.Spaces = nil })}, errdefs.IsDataLoss},
		"a space more": {[]func(*Writer) error{hello(func(h *Hello) {
			h.Spaces = append(h.Spaces, Area{Name: "disk9", Size: 4096})
		})}, errdefs.IsFailedPrecondition},
		"a disk more": {[]func(*Writer) error{hello(func(h *Hello) {
			h.Disks = append(h.Disks, Blob{ID: "layer9"})
		})}, errdefs.IsFailedPrecondition},
		"a disk less": {[]func(*Writer) error{hello(func(h *Hello) { h.Disks = nil })}, errdefs.IsFailedPrecondition},
		"another layer": {[]func(*Writer) error{hello(func(h *Hello) {
			h.Disks[0].Digest = "sha256:other"
		})}, errdefs.IsFailedPrecondition},
		"no hello":          {[]func(*Writer) error{packet(KindBarrier, 0, 0)}, errdefs.IsDataLoss},
		"pages of no space": {[]func(*Writer) error{good, packet(KindPages, 0, 7, 1)}, errdefs.IsDataLoss},
		"no pages":          {[]func(*Writer) error{good, packet(KindPages, 0, 0)}, errdefs.IsDataLoss},
		"numbers are cut":   {[]func(*Writer) error{good, packet(KindPages, 0, 0, 3, 1, 2)}, errdefs.IsDataLoss},
		"codec is unknown": {[]func(*Writer) error{good,
			packet(KindPages, 9, 0, append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 4096)...)...)},
			errdefs.IsNotImplemented},
		"page is outside": {[]func(*Writer) error{good,
			packet(KindPages, 0, 0, append([]byte{1, 8, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 4096)...)...)}, errdefs.IsDataLoss},
		"page is far outside": {[]func(*Writer) error{good,
			packet(KindPages, 0, 0, append([]byte{1, 255, 255, 255, 255, 255, 255, 255, 255}, make([]byte, 4096)...)...)},
			errdefs.IsDataLoss},
		"zeros are outside": {[]func(*Writer) error{good, func(w *Writer) error {
			return w.Zeros(t.Context(), 0, [][2]uint64{{7, 2}})
		}}, errdefs.IsDataLoss},
		"state has a gap": {[]func(*Writer) error{good, packet(KindState, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1)},
			errdefs.IsDataLoss},
		"disk was not wanted": {[]func(*Writer) error{good, packet(KindDisk, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1)},
			errdefs.IsDataLoss},
		"disk is another": {[]func(*Writer) error{good,
			packet(KindDisk, 0, 0, append(make([]byte, 8), "A read-only disk"...)...)}, errdefs.IsDataLoss},
		"table not wanted": {[]func(*Writer) error{good, packet(KindTable, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)},
			errdefs.IsDataLoss},
		"table has a gap": {[]func(*Writer) error{tabled, packet(KindTable, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1)},
			errdefs.IsDataLoss},
		"table is longer": {[]func(*Writer) error{tabled, packet(KindTable, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3)},
			errdefs.IsDataLoss},
		"table is cut": {[]func(*Writer) error{tabled, packet(KindDisk, 0, 0, append(make([]byte, 8), testDisk...)...),
			packet(KindTable, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
			func(w *Writer) error { _, err := w.End(t.Context(), nil); return err }}, errdefs.IsDataLoss},
		"end comes early": {[]func(*Writer) error{good, func(w *Writer) error {
			_, err := w.End(t.Context(), nil)
			return err
		}}, errdefs.IsDataLoss},
		"end of another": {[]func(*Writer) error{good, packet(KindDisk, 0, 0, append(make([]byte, 8), testDisk...)...),
			func(w *Writer) error { return w.JSON(t.Context(), KindEnd, End{Sum: "00"}) }}, errdefs.IsDataLoss},
		"a destination's": {[]func(*Writer) error{good, packet(KindReady, 0, 0, '{', '}')}, errdefs.IsDataLoss},
		"it failed": {[]func(*Writer) error{good, func(w *Writer) error {
			return w.Fail(t.Context(), errdefs.ErrResourceExhausted)
		}}, errdefs.IsResourceExhausted},
		"it is gone":        {[]func(*Writer) error{good}, errdefs.IsUnavailable},
		"it was never here": {nil, errdefs.IsUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var all bytes.Buffer
			w := NewWriter(&all, 0)
			for _, say := range c.say {
				if err := say(w); err != nil {
					t.Fatal(err)
				}
			}
			to := target(t)
			to.Load = func(context.Context, string, End, *Written) error { t.Error("loaded"); return nil }
			if err := Receive(t.Context(), &wire{Reader: &all}, to); !c.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Only the two that know each other's certificate, on the same channel, get a connection.
func TestEnds(t *testing.T) {
	one, two, third := identity(t), identity(t), identity(t)
	source := Ends{Own: one, Peer: two.Certificate, Channel: "c"}
	destination := Ends{Own: two, Peer: one.Certificate, Channel: "c"}
	change := func(e Ends, f func(*Ends)) Ends { f(&e); return e }
	for name, c := range map[string]struct {
		source, destination Ends
		ok                  bool
	}{
		"each other":          {source, destination, true},
		"another source":      {change(source, func(e *Ends) { e.Own = third }), destination, false},
		"another destination": {source, change(destination, func(e *Ends) { e.Own = third }), false},
		"another channel":     {change(source, func(e *Ends) { e.Channel = "d" }), destination, false},
		"not told":            {source, change(destination, func(e *Ends) { e.Peer = nil }), false},
		"not even the source": {change(source, func(e *Ends) { e.Peer = nil }), destination, false},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			served := make(chan error, 1)
			go func() {
				conn, err := c.destination.Server(t.Context(), far)
				if err == nil {
					_, err = conn.Write([]byte("x"))
				} else {
					far.Close()
				}
				served <- err
			}()
			conn, err := c.source.Client(t.Context(), near)
			if err == nil { // the destination's refusal comes with the first byte
				_, err = conn.Read(make([]byte, 1))
			}
			near.Close()
			serr := <-served
			if c.ok && (err != nil || serr != nil) || !c.ok && (err == nil || serr == nil) {
				t.Errorf("source %v, destination %v", err, serr)
			}
			if !c.ok && !errdefs.IsUnauthorized(err) && !errdefs.IsUnauthorized(serr) {
				t.Errorf("of class %v, %v", err, serr)
			}
		})
	}
}

func identity(t *testing.T) Identity {
	t.Helper()
	i, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

type frame struct {
	kind         Kind
	codec, space byte
	body         []byte
}

func frames(all ...frame) (data []byte) {
	for _, f := range all {
		data = append(data, byte(f.kind), f.codec, f.space, byte(len(f.body)), byte(len(f.body)>>8))
		data = append(data, f.body...)
	}
	return data
}

func fuzzTarget(t *testing.T, dir string) Target {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.CreateTemp(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(f.Name())
		t.Cleanup(func() { f.Close() })
		return f
	}
	return Target{
		State:  open("state"),
		Spaces: []TargetSpace{{Area: Area{Name: "ram0", Size: 8 * format.PageSize}, File: open("ram")}},
		Disks: []TargetDisk{{Blob: Blob{ID: "d", Digest: digest.FromBytes(testDisk), Size: int64(len(testDisk))},
			File: open("disk")}},
		Complete: func(context.Context) error { return nil },
	}
}
