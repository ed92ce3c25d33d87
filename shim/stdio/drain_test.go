package stdio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/internal/retry"
)

// mortal is a talker that says nothing any more once its VM has gone.
type mortal struct {
	talker
	gone atomic.Bool
}

func (g *mortal) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	if g.gone.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return g.talker.Read(ctx, r)
}

// A client that reads after the VM has gone finds all that was written, once and in order, and
// its end. That also holds if it had read a part, and if it had read nothing.
func TestLateReader(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	for name, early := range map[string]int{"from the beginning": 0, "from the middle": 300_000} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p := NewPump("", &Streams{stdout: w}, client.Offsets{})
			g := &mortal{talker: talker{text: text, chunk: 64 << 10}}
			p.Start(t.Context(), g)
			got := make([]byte, early)
			if _, err := io.ReadFull(r, got); err != nil {
				t.Fatal(err)
			}
			if !waitFor(func() bool { return p.load(&p.offsets.Stdout) > uint64(early) }) {
				t.Fatal("no byte arrives")
			}
			p.End(&agentv1.WaitResponse{Settled: true, StdoutEnd: uint64(len(text))})
			p.DrainGuest(t.Context(), g)
			g.gone.Store(true)
			p.closeAfterVM()
			p.Start(t.Context(), g) // as a resume that was too late
			rest, err := io.ReadAll(r)
			if got = append(got, rest...); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes of %d, or others: %v", len(got), len(text), err)
			}
		})
	}
}

// A client that never reads does not hold the rest for ever: what closes the streams ends it.
func TestUnreadRest(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := NewPump("", &Streams{stdout: w}, client.Offsets{})
	p.End(&agentv1.WaitResponse{Settled: true, StdoutEnd: 1 << 20})
	p.DrainGuest(t.Context(), &talker{text: make([]byte, 1<<20), chunk: 64 << 10})
	p.closeAfterVM()
	p.streams.Close()
	p.WaitDrained(t.Context())
}

// drip reads to the end, a little at a time.
func drip(r io.Reader, pause time.Duration, each int) ([]byte, error) {
	var got []byte
	buf := make([]byte, each)
	for tick := time.NewTicker(pause); ; <-tick.C {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if errors.Is(err, io.EOF) {
			tick.Stop()
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// The exit of a process is told when its client has all of its output. The client may read
// slowly, and over any number of captures. Only a client that reads nothing at all does not hold
// the exit up.
func TestExitWaitsForASlowReader(t *testing.T) {
	defer func(d time.Duration) { drainBound = d }(drainBound)
	drainBound = 200 * time.Millisecond
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
	for _, name := range []string{"slow", "over captures"} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p := NewPump("", &Streams{stdout: w}, client.Offsets{})
			defer p.streams.Close()
			g := &talker{text: text, chunk: 16 << 10}
			p.Start(t.Context(), g)
			p.End(&agentv1.WaitResponse{Settled: true, StdoutEnd: uint64(len(text))})
			told := make(chan uint64, 1)
			go func() {
				p.WaitDrained(t.Context())
				told <- p.load(&p.offsets.Stdout)
			}()
			if name == "over captures" {
				p.Stop()
				select {
				case at := <-told:
					t.Fatalf("the exit was told at %d of %d, while the streams stood still", at, len(text))
				case <-time.After(2 * drainBound):
				}
				p.Start(t.Context(), g)
			}
			got, err := drip(r, drainBound/10, 32<<10) // in all more than three times the bound
			if err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes of %d, or others: %v", len(got), len(text), err)
			}
			if at := <-told; at != uint64(len(text)) {
				t.Errorf("the exit was told at %d of %d", at, len(text))
			}
		})
	}
	t.Run("no reader", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p := NewPump("", &Streams{stdout: w}, client.Offsets{})
		p.Start(t.Context(), &talker{text: text, chunk: 16 << 10})
		p.End(&agentv1.WaitResponse{Settled: true, StdoutEnd: uint64(len(text))})
		p.WaitDrained(t.Context()) // else the test never ends
		if at := p.Stop().Stdout; at == 0 || at >= uint64(len(text)) {
			t.Errorf("%d bytes of %d are out", at, len(text))
		}
		p.streams.Close()
	})
}

// slow is a talker whose every piece takes a while.
type slow struct {
	talker
	pause time.Duration
}

func (g *slow) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	retry.Sleep(ctx, g.pause)
	return g.talker.Read(ctx, r)
}

// What a slow guest holds is all taken before it goes; one that brings nothing any more is
// not waited for.
func TestRestOfASlowGuest(t *testing.T) {
	defer func(d time.Duration) { restBound = d }(restBound)
	restBound = 1500 * time.Millisecond
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
	s := output{stream: agentv1.Stream_STREAM_STDOUT}
	p := NewPump("", &Streams{}, client.Offsets{})
	s.offset = &p.offsets.Stdout
	p.End(&agentv1.WaitResponse{Settled: true, StdoutEnd: uint64(len(text))})
	g := &slow{talker: talker{text: text, chunk: 64 << 10}, pause: restBound / 10}
	if got := p.readRest(t.Context(), g, s); !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, or others", len(got), len(text))
	}
	g.pause = time.Hour
	if got := p.readRest(t.Context(), g, s); len(got) != 0 {
		t.Errorf("%d bytes of a guest that says nothing", len(got))
	}
	mute := &silent{}
	if got := p.readRest(t.Context(), mute, s); len(got) != 0 || mute.asked.Load() == 0 {
		t.Errorf("%d bytes, asked %d times", len(got), mute.asked.Load())
	}
}

// silent answers, and has nothing to say.
type silent struct {
	agentv1.AgentService
	asked atomic.Int64
}

func (g *silent) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	g.asked.Add(1)
	retry.Sleep(ctx, time.Millisecond)
	return &agentv1.ReadResponse{Offset: r.GetOffset()}, nil
}
