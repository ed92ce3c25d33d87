package serial

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// line is a VMM's end of a serial port.
func line(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// readAll reads up to the end of the port, from offset on.
func readAll(t *testing.T, p *Port, offset uint64) string {
	t.Helper()
	var all bytes.Buffer
	for {
		r, err := p.Read(t.Context(), &agentv1.ReadRequest{Stream: agentv1.Stream_STREAM_STDOUT, Offset: offset, Max: 10,
			WaitMs: 1000})
		if err != nil {
			t.Fatal(err)
		}
		all.Write(r.GetData())
		offset = r.GetOffset() + uint64(len(r.GetData()))
		if r.GetEof() {
			return all.String()
		}
	}
}

// TestBothWays: what the guest writes is read by offset, and what is typed reaches it. The end
// of the VMM is the end of the output, and all output is there.
func TestBothWays(t *testing.T) {
	path, gone := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	l := line(t, path)
	p := Open(path, gone, 100, 7)
	defer p.Close()
	guest := accept(t, l)
	fmt.Fprint(guest, "login: ")
	if r, err := p.Read(t.Context(), &agentv1.ReadRequest{Stream: agentv1.Stream_STREAM_STDOUT, Offset: 100, Max: 99,
		WaitMs: 5000}); err != nil || string(r.GetData()) != "login: " || r.GetOffset() != 100 {
		t.Fatalf("read %v, %v", r, err)
	}
	// Of a repeated write only the new part is typed.
	for _, w := range []struct {
		offset uint64
		data   string
	}{{7, "ro"}, {7, "root"}, {9, "ot\n"}} {
		r, err := p.Write(t.Context(), &agentv1.WriteRequest{Offset: w.offset, Data: []byte(w.data)})
		if err != nil || r.GetOffset() != w.offset+uint64(len(w.data)) {
			t.Fatalf("write %v: %v, %v", w, r, err)
		}
	}
	typed := make([]byte, 5)
	if _, err := io.ReadFull(guest, typed); err != nil || string(typed) != "root\n" {
		t.Fatalf("typed %q, %v", typed, err)
	}
	fmt.Fprint(guest, "welcome")
	guest.Close()
	close(gone)
	if got := readAll(t, p, 107); got != "welcome" {
		t.Errorf("rest %q", got)
	}
	if r, err := p.Read(t.Context(), &agentv1.ReadRequest{Stream: agentv1.Stream_STREAM_STDERR,
		WaitMs: 1000}); err != nil || !r.GetEof() {
		t.Errorf("stderr %v, %v", r, err)
	}
	if _, err := p.Write(t.Context(), &agentv1.WriteRequest{Offset: 12, Data: []byte("x")}); !errdefs.IsUnavailable(err) {
		t.Errorf("write after the end: %v", err)
	}
}

// TestSocketComesAndGoes: a VMM may make its socket at the boot, and again at a reset.
func TestSocketComesAndGoes(t *testing.T) {
	path, gone := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	p := Open(path, gone, 0, 0)
	defer p.Close()
	for _, boot := range []string{"first", "second"} {
		l := line(t, path)
		guest := accept(t, l)
		fmt.Fprint(guest, boot)
		guest.Close()
		l.Close()
	}
	// Both are read before the end: a Read waits for them.
	var all string
	for at := uint64(0); all != "firstsecond"; at = uint64(len(all)) {
		data, _, eof := p.Output(t.Context(), at, 100)
		if all += string(data); eof || !strings.HasPrefix("firstsecond", all) {
			t.Fatalf("read %q, end %t", all, eof)
		}
	}
	close(gone)
	<-p.Ended()
}

// TestUnreadOutput: the guest is not held up, and of more than is kept the newest is had.
func TestUnreadOutput(t *testing.T) {
	path, gone := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	l := line(t, path)
	p := Open(path, gone, 0, 0)
	defer p.Close()
	guest := accept(t, l)
	if _, err := guest.Write(append(bytes.Repeat([]byte("x"), 3*keep), "the end"...)); err != nil {
		t.Fatal(err)
	}
	guest.Close()
	close(gone)
	<-p.Ended()
	data, at, eof := p.Output(t.Context(), 5, 4*keep)
	if len(data) != keep || at != 2*keep+7 || !eof || !bytes.HasSuffix(data, []byte("xthe end")) {
		t.Errorf("%d bytes from %d on, end %t", len(data), at, eof)
	}
}

// TestGuestDoesNotRead: a write ends with its caller's patience, and what was taken of
// it counts.
func TestGuestDoesNotRead(t *testing.T) {
	path, gone := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	l := line(t, path)
	p := Open(path, gone, 0, 0)
	defer p.Close()
	guest := accept(t, l)
	data, at := bytes.Repeat([]byte("y"), 4<<20), uint64(0)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		next, err := p.Type(ctx, at, data[at:])
		cancel()
		if err == nil {
			at = next
		} else if at > 0 { // else its line is not there yet
			break
		}
	}
	if at == 0 || at == uint64(len(data)) {
		t.Fatalf("%d bytes were taken", at)
	}
	got := make([]byte, at)
	if _, err := io.ReadFull(guest, got); err != nil || !bytes.Equal(got, data[:at]) {
		t.Errorf("the guest got something else: %v", err)
	}
}

// TestNoAgent: what only an agent could do is refused, and says why.
func TestNoAgent(t *testing.T) {
	gone := make(chan struct{})
	p := Open(filepath.Join(t.TempDir(), "none"), gone, 3, 4)
	close(gone)
	ctx := t.Context()
	calls := map[string]func() error{
		"exec":      func() error { _, err := p.Start(ctx, &agentv1.StartRequest{Id: "e"}); return err },
		"setup":     func() error { _, err := p.Setup(ctx, nil); return err },
		"prepare":   func() error { _, err := p.Prepare(ctx, nil); return err },
		"copy":      func() error { _, err := p.Copy(ctx, nil); return err },
		"network":   func() error { _, err := p.ConfigureNetwork(ctx, nil); return err },
		"restored":  func() error { _, err := p.Restored(ctx, nil); return err },
		"clock":     func() error { _, err := p.SetClock(ctx, nil); return err },
		"kill":      func() error { _, err := p.Kill(ctx, nil); return err },
		"remove":    func() error { _, err := p.Remove(ctx, nil); return err },
		"stats":     func() error { _, err := p.Stats(ctx, nil); return err },
		"update":    func() error { _, err := p.Update(ctx, nil); return err },
		"sync":      func() error { _, err := p.Sync(ctx, nil); return err },
		"shutdown":  func() error { _, err := p.Shutdown(ctx, nil); return err },
		"pod":       func() error { _, err := p.SetupPod(ctx, nil); return err },
		"volume":    func() error { _, err := p.AddVolume(ctx, nil); return err },
		"no volume": func() error { _, err := p.RemoveVolume(ctx, nil); return err },
		"content":   func() error { _, err := p.SyncVolume(ctx, nil); return err },
		"add":       func() error { _, err := p.AddContainer(ctx, nil); return err },
		"take away": func() error { _, err := p.RemoveContainer(ctx, nil); return err },
		"connect":   func() error { _, err := p.Connect(ctx, nil); return err },
		"read back": func() error { _, err := p.ReadBack(ctx, nil); return err },
	}
	for name, call := range calls {
		if err := call(); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "no agent") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := p.Processes(ctx, nil); err != nil || r.GetProcesses()[0].GetStdoutOffset() != 3 ||
		r.GetProcesses()[0].GetStdinOffset() != 4 {
		t.Errorf("processes: %v, %v", r, err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.Wait(short, nil); err == nil {
		t.Error("the console has ended by itself")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
