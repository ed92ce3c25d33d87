package stdio

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
)

// talker is a guest process that has written text and ended its stream.
type talker struct {
	agentv1.AgentService
	text  []byte
	chunk int
}

func (g *talker) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	from := int(r.GetOffset())
	to := min(from+g.chunk, len(g.text))
	return &agentv1.ReadResponse{Data: g.text[from:to], Offset: uint64(from), Eof: to == len(g.text)}, nil
}

// However often the pumps are stopped and started again, also by another shim,
// every byte arrives once and in order.
func TestOutputSurvivesStops(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := &talker{text: text, chunk: 97}
	var from client.Offsets
	for from.Stdout < uint64(len(text)) {
		st, err := Open("ns", "vm", URIs{Stdout: path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := NewPump("", st, from)
		p.Start(t.Context(), g)
		before := from.Stdout
		if !waitFor(func() bool { return p.load(&p.offsets.Stdout) > before }) {
			t.Fatal("no byte arrives")
		}
		from = p.Stop()
		st.Close()
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes arrived of %d, %v", len(got), len(text), err)
	}
}

// A client that does not read stops neither a capture nor an end.
func TestStopInterruptsABlockedClient(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := NewPump("", &Streams{stdout: w}, client.Offsets{})
	p.Start(t.Context(), &talker{text: make([]byte, 1<<20), chunk: 64 << 10})
	if !waitFor(func() bool { return p.load(&p.offsets.Stdout) > 0 }) {
		t.Fatal("no byte arrives")
	}
	at := p.Stop().Stdout
	p.streams.Close()
	var got bytes.Buffer
	if _, err := got.ReadFrom(r); err != nil || uint64(got.Len()) != at {
		t.Errorf("%d bytes arrived, the offset says %d, %v", got.Len(), at, err)
	}
}

// A stop that has just ended does not end what flows after it: its deadline is not set
// late, on the writes of the next start.
func TestStopReachesNoLaterStart(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	go func() {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r)
		got <- b.Len()
	}()
	text := make([]byte, 2<<20)
	p := NewPump("", &Streams{stdout: w}, client.Offsets{})
	for range 2000 {
		p.Start(t.Context(), &talker{text: text, chunk: 100})
		p.Stop()
	}
	p.Start(t.Context(), &talker{text: text, chunk: 64 << 10})
	defer p.Stop()
	defer p.streams.Close()
	if !waitFor(func() bool { return p.load(&p.offsets.Stdout) == uint64(len(text)) }) {
		t.Fatalf("the stream ended at %d", p.load(&p.offsets.Stdout))
	}
	if n := <-got; n != len(text) {
		t.Errorf("%d bytes arrived of %d", n, len(text))
	}
}

// A process whose reader has gone goes on: what it writes is dropped, and its end still comes.
func TestOutputOfAReaderWhoLeft(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	p := NewPump("", &Streams{stdout: w}, client.Offsets{})
	defer p.Stop()
	p.Start(t.Context(), &talker{text: make([]byte, 1<<20), chunk: 64 << 10})
	if !waitFor(func() bool { return p.isFinished(agentv1.Stream_STREAM_STDOUT) }) {
		t.Fatal("the stream has no end")
	}
	if at := p.load(&p.offsets.Stdout); at != 1<<20 {
		t.Errorf("the guest waits for its reader at byte %d", at)
	}
}

// impatient is a guest that answers every Read at once, with nothing.
type impatient struct {
	agentv1.AgentService
	reads atomic.Int64
}

func (g *impatient) Read(context.Context, *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	g.reads.Add(1)
	return &agentv1.ReadResponse{}, nil
}

// A guest that never waits for output does not make the host spin.
func TestEmptyAnswersDoNotSpin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := Open("ns", "vm", URIs{Stdout: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	g := new(impatient)
	p := NewPump("", st, client.Offsets{})
	p.Start(t.Context(), g)
	if !waitFor(func() bool { return g.reads.Load() >= 3 }) {
		t.Fatal("the guest is not asked")
	}
	begun, before := time.Now(), g.reads.Load()
	if !waitFor(func() bool { return g.reads.Load() >= before+2 }) {
		t.Fatal("the guest is not asked again")
	}
	if took := time.Since(begun); took < retryPause {
		t.Errorf("two reads after %v", took)
	}
	p.Stop()
}

// waitFor reports whether ok becomes true within a minute.
func waitFor(ok func() bool) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
