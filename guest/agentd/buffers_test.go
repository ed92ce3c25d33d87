package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/guest/session"
)

// carried is an output and the end that its process writes to.
func carried(t *testing.T) (*output, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	o := newOutput(func() {})
	o.carry(r, false)
	return o, w
}

func TestOutputIsKeptUntilAcknowledged(t *testing.T) {
	o, w := carried(t)
	if _, err := w.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		offset uint64
		max    int
		want   string
		at     uint64
	}{
		{0, 4, "0123", 0}, {0, 4, "0123", 0}, {4, 3, "456", 4}, {2, 100, "456789", 4}, {9, 100, "9", 9},
	}
	for _, s := range steps {
		data, at, eof := o.read(t.Context(), s.offset, s.max, time.Minute)
		if string(data) != s.want || at != s.at || eof {
			t.Fatalf("read %d: %q at %d, eof %v", s.offset, data, at, eof)
		}
	}
	if data, at, eof := o.read(t.Context(), 10, 1, 0); len(data) != 0 || at != 10 || eof {
		t.Fatalf("%q %d %v", data, at, eof)
	}
	w.Close()
	if _, at, eof := o.read(t.Context(), 10, 1, time.Minute); at != 10 || !eof {
		t.Fatal("no end of file")
	}
}

// The process blocks when the host does not read; memory is bounded.
func TestOutputBackpressure(t *testing.T) {
	o, w := carried(t)
	wrote := make(chan error, 1)
	want := bytes.Repeat([]byte("x"), 3*outputSize)
	go func() {
		_, err := w.Write(want)
		w.Close()
		wrote <- err
	}()
	total := 0
	for offset := uint64(0); ; {
		data, at, eof := o.read(t.Context(), offset, readLimit, time.Minute)
		if len(data) > outputSize {
			t.Fatalf("%d bytes were kept", len(data))
		}
		total += len(data)
		if offset = at + uint64(len(data)); eof {
			break
		}
	}
	if err := <-wrote; err != nil || total != len(want) {
		t.Fatal(total, err)
	}
}

type sink struct {
	bytes.Buffer
	closed chan struct{}
	fail   error
}

func (s *sink) Write(b []byte) (int, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	return s.Buffer.Write(b)
}
func (s *sink) Close() error { close(s.closed); return nil }

func TestInputIsAcceptedOnce(t *testing.T) {
	i := newInput()
	s := &sink{closed: make(chan struct{})}
	go i.pump(s, false)
	for _, w := range []struct {
		offset uint64
		data   string
		want   uint64
	}{{0, "abc", 3}, {0, "abc", 3}, {1, "bcde", 5}, {5, "f", 6}, {2, "c", 6}} {
		got, closed, err := i.write(t.Context(), w.offset, []byte(w.data))
		if got != w.want || closed || err != nil {
			t.Fatalf("%+v: %d %v %v", w, got, closed, err)
		}
	}
	if _, _, err := i.write(t.Context(), 9, []byte("gap")); !errdefs.IsOutOfRange(err) {
		t.Fatal(err)
	}
	// The end is in-band: bytes before it are still taken.
	i.closeAfter(8)
	if got, _, err := i.write(t.Context(), 6, []byte("gh")); got != 8 || err != nil {
		t.Fatal(got, err)
	}
	<-s.closed
	if s.String() != "abcdefgh" {
		t.Fatal(s.String())
	}
}

func TestInputOfProcessThatStoppedReading(t *testing.T) {
	i := newInput()
	ctx, cancel := context.WithCancel(t.Context())
	if n, _, err := i.write(ctx, 0, make([]byte, 2*inputSize)); n != inputSize || err != nil {
		t.Fatal(n, err)
	}
	cancel()
	if _, _, err := i.write(ctx, inputSize, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s := &sink{closed: make(chan struct{}), fail: io.ErrClosedPipe}
	i.pump(s, false)
	<-s.closed
	if _, closed, err := i.write(t.Context(), inputSize, []byte("x")); !closed || err != nil {
		t.Fatal(closed, err)
	}
}

// Where a process's output ends is known at its exit, however much was read, and what comes
// later does not move it.
func TestOutputSettles(t *testing.T) {
	o, w := carried(t)
	want := outputSize + 40000 // more than the buffer holds
	if err := setPipeSize(w); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, want)); err != nil {
		t.Fatal(err)
	}
	if got := o.settle(); got != uint64(want) {
		t.Fatalf("output ends at %d, not %d", got, want)
	}
	o.read(t.Context(), 1000, 1, time.Minute)
	if _, err := w.Write([]byte("later")); err != nil || o.settle() != uint64(want) {
		t.Fatal(o.settle(), err)
	}
}

func setPipeSize(w *os.File) error {
	raw, err := w.SyscallConn()
	if err != nil {
		return err
	}
	var sized error
	err = raw.Control(func(fd uintptr) { _, sized = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	return errors.Join(err, sized)
}

// A lane sends each byte once until it is told to go back, nothing beyond its limit, and
// says what is gone.
func TestOutputAsLane(t *testing.T) {
	o, w := carried(t)
	if _, err := w.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for o.settle() != 10 || !o.over() {
		runtime.Gosched()
	}
	next := func() string {
		p := make([]byte, 100)
		piece, ok := o.Next(p)
		return fmt.Sprint(string(p[:piece.Len]), piece.At, piece.End, piece.Skip, piece.Gone, ok)
	}
	for _, step := range []struct {
		want session.Want
		say  string
	}{
		{session.Want{}, "0 false false false false"},
		{session.Want{Limit: 4, Again: true}, "01230 false false false true"},
		{session.Want{Limit: 4}, "4 false false false false"},
		{session.Want{Have: 4, Limit: 100}, "4567894 true false false true"},
		{session.Want{Have: 4, Limit: 100}, "10 false false false false"},
		{session.Want{Have: 4, From: 8, Limit: 100, Again: true}, "898 true false false true"},
		{session.Want{From: 2, Limit: 100, Again: true}, "4567894 true true false true"},
	} {
		o.Want(step.want)
		if got := next(); got != step.say {
			t.Fatalf("%+v: %s, not %s", step.want, got, step.say)
		}
	}
	o.discard()
	if got := next(); got != "0 false false true true" {
		t.Fatal(got)
	}
}

func (o *output) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.eof
}

// A process whose output is not taken is 1.5 to 2 MiB in advance and then waits, as it does at a
// full pipe. Where its output ends is known to the byte all the same.
func TestUnreadOutput(t *testing.T) {
	o, w := carried(t)
	if err := setPipeSize(w); err != nil {
		t.Fatal(err)
	}
	const least, most = outputSize - stepMax + pipeSize, outputSize + pipeSize
	ahead, rest := 0, 3
	for begun := time.Now(); rest > 0 && time.Since(begun) < time.Minute; {
		if err := w.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := w.Write(make([]byte, most))
		if ahead += n; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes ahead: %v", ahead, err)
		}
		if ahead >= least {
			rest--
		}
	}
	if ahead < least || ahead > most {
		t.Errorf("%d bytes ahead, not %d to %d", ahead, least, most)
	}
	if got := o.settle(); got != uint64(ahead) {
		t.Errorf("output ends at %d, not %d", got, ahead)
	}
	w.Close()
	total := 0
	for end := false; !end; {
		var data []byte
		data, _, end = o.read(t.Context(), uint64(total), outputSize, time.Minute)
		total += len(data)
	}
	if total != ahead {
		t.Errorf("%d bytes come, not %d", total, ahead)
	}
}
