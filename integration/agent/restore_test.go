//go:build integration

package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/integration/harness"

	"golang.org/x/sync/errgroup"
)

// answerBound is far more than a guest needs for an answer, on whatever host: one that is lost is
// told with its console, and not waited for.
const answerBound = 3 * time.Minute

// rounds of save, kill and restore.
const rounds = 20

// lines checks numbered lines as they arrive, in any pieces.
type lines struct {
	next atomic.Int64
	part string
	bad  atomic.Pointer[string]
}

func (l *lines) Write(b []byte) (int, error) {
	all := l.part + string(b)
	for {
		line, rest, ok := strings.Cut(all, "\n")
		if !ok {
			l.part = all
			return len(b), nil
		}
		all = rest
		if want := fmt.Sprintf("line %d", l.next.Load()); line != want && l.bad.Load() == nil {
			s := fmt.Sprintf("got %q, want %q", line, want)
			l.bad.Store(&s)
		}
		l.next.Add(1)
	}
}

// stream runs what CopyStdout and CopyStdin do for one process of a test that moves.
type stream struct {
	*client.Streams
	stop context.CancelFunc
	g    *errgroup.Group
}

// carry starts carrying the streams of id from where they were.
func (m *machine) carry(id string, from client.Offsets, in io.Reader, out io.Writer) *stream {
	ctx, stop := context.WithCancel(m.t.Context())
	s := &stream{Streams: m.agent.NewStreams(id, from), stop: stop, g: new(errgroup.Group)}
	if in != nil {
		s.g.Go(func() error { return s.CopyStdin(ctx, in) })
	}
	s.g.Go(func() error { return s.CopyStdout(ctx, out) })
	return s
}

// halt stops carrying and says how far it came, as a shim does before it saves.
func (s *stream) halt(t *testing.T) client.Offsets {
	s.stop()
	if err := s.g.Wait(); err != nil && err != context.Canceled {
		t.Errorf("streams: %v", err)
	}
	return s.Offsets()
}

// numbers is an endless stdin of numbered lines.
type numbers struct {
	n    int
	rest []byte
}

func (n *numbers) Read(b []byte) (int, error) {
	for len(n.rest) < len(b) {
		n.rest = fmt.Appendf(n.rest, "line %d\n", n.n)
		n.n++
	}
	c := copy(b, n.rest)
	n.rest = n.rest[c:]
	return c, nil
}

// Numbered lines flow both ways through every restore. A new host goes on with the offsets of
// the one before, and connects early or late. The same host goes on over the new socket.
func TestStreamsThroughRestores(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	// One process produces, one sends back what it is sent.
	if err := m.start("count", process("sh", "-c", "i=0; while true; do echo line $i; i=$((i+1)); done")); err != nil {
		t.Fatal(err)
	}
	if err := m.start("echo", process("cat")); err != nil {
		t.Fatal(err)
	}
	before, err := m.agent.Info(t.Context(), &agentv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var counted, echoed lines
	var countAt, echoAt client.Offsets
	source := new(numbers)
	count, echo := m.carry("count", countAt, nil, &counted), m.carry("echo", echoAt, source, &echoed)
	for round := range rounds {
		id := fmt.Sprint("short", round)
		if err := m.start(id, process("sh", "-c", fmt.Sprintf("sleep 0.1; exit %d", round+1))); err != nil {
			t.Fatal(err)
		}
		was := [2]int64{counted.next.Load(), echoed.next.Load()}
		m.until(func() bool { return counted.next.Load() > was[0] && echoed.next.Load() > was[1] })
		reached := make(chan error, 1)
		switch round % 3 {
		case 0: // the same host; what is in flight stays in flight
			m.move(func() { m.agent.Move(m.socket()) }, func() {})
		case 1, 2:
			countAt, echoAt = count.halt(t), echo.halt(t)
			m.agent.Close()
			connect := func() { reached <- m.connected() }
			arrived := func() {
				if err := <-reached; err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
			if round%3 == 1 {
				m.move(func() { go connect() }, arrived)
			} else {
				m.move(func() {}, func() { connect(); arrived() })
			}
			count, echo = m.carry("count", countAt, nil, &counted), m.carry("echo", echoAt, source, &echoed)
		}
		m.restored(before, round, 3)
		ctx, cancel := context.WithTimeout(t.Context(), harness.Slow(answerBound))
		e, err := m.agent.WaitExit(ctx, id)
		if cancel(); err != nil || e.Status != uint32(round+1) {
			t.Fatalf("exit of round %d: %+v %v", round, e, err)
		}
		for _, l := range []*lines{&counted, &echoed} {
			if bad := l.bad.Load(); bad != nil {
				t.Fatalf("round %d: %s", round, *bad)
			}
		}
	}
	t.Logf("%d counted, %d echoed", counted.next.Load(), echoed.next.Load())
	count.halt(t)
	echo.halt(t)
}

// until polls a condition.
func (m *machine) until(ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatal("the condition did not come true within a minute")
		}
	}
}

// restored says so to the guest and checks that it is the same boot.
func (m *machine) restored(before *agentv1.InfoResponse, round, processes int) {
	m.t.Helper()
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy)
	ctx, cancel := context.WithTimeout(m.t.Context(), harness.Slow(answerBound))
	defer cancel()
	r, err := m.agent.Restored(ctx, &agentv1.RestoredRequest{
		Entropy: entropy, UnixNano: time.Now().UnixNano(), Generation: fmt.Sprint(round),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if r.BootId != before.BootId || r.UptimeMs < before.UptimeMs {
		m.t.Fatalf("another boot: %+v, was %+v", r, before)
	}
	if len(r.Processes) < processes {
		m.t.Fatalf("processes: %v", r.Processes)
	}
}

// Two VMs of one snapshot draw different numbers and know the time.
func TestClockAndEntropy(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	before, err := m.agent.Info(t.Context(), &agentv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m.agent.Close()
	m.move(func() {}, m.connect)
	m.restored(before, 1, 1)
	r, err := m.exec("date", process("date", "+%s"), "")
	if err != nil {
		t.Fatal(err)
	}
	var sec int64
	if _, err := fmt.Sscan(r.Out, &sec); err != nil {
		t.Fatal(err)
	}
	if diff := time.Now().Unix() - sec; diff < -5 || diff > 60 {
		t.Fatalf("guest's clock is %d s off", diff)
	}
	if _, err := m.agent.Restored(t.Context(), &agentv1.RestoredRequest{Entropy: make([]byte, 8)}); err == nil {
		t.Fatal("8 bytes of entropy were enough")
	}
}
