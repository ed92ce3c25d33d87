package shim

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest"
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

// A client that reads after the VM has gone finds all that was written, once and in
// order, and its end; also where it had read a part, and where it never reads.
func TestLateReader(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	for name, early := range map[string]int{"from the beginning": 0, "from the middle": 300_000} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p := newPumps("", &streams{stdout: w}, guest.Offsets{})
			g := &mortal{talker: talker{text: text, chunk: 64 << 10}}
			p.start(t.Context(), g)
			got := make([]byte, early)
			if _, err := io.ReadFull(r, got); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return p.load(&p.offsets.Stdout) > uint64(early) }) {
				t.Fatal("no byte arrives")
			}
			p.end(&agentv1.WaitResponse{Settled: true, StdoutEnd: uint64(len(text))})
			p.rescue(t.Context(), g)
			g.gone.Store(true)
			p.leave()
			p.start(t.Context(), g) // as a thaw that was too late
			rest, err := io.ReadAll(r)
			if got = append(got, rest...); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes of %d, or others: %v", len(got), len(text), err)
			}
		})
	}
}

// A client that never reads does not hold the rest for ever: what closes the streams ends it.
func TestRestThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := newPumps("", &streams{stdout: w}, guest.Offsets{})
	p.end(&agentv1.WaitResponse{Settled: true, StdoutEnd: 1 << 20})
	p.rescue(t.Context(), &talker{text: make([]byte, 1<<20), chunk: 64 << 10})
	p.leave()
	p.streams.close()
	p.waitDrained(t.Context())
}

// An exec that has ended while nobody read what it wrote tells its own status when the VM
// ends, not that of a process that was killed, and its output is there.
func TestEndOfAnUnreadExec(t *testing.T) {
	w := newWorld(t).running()
	text := bytes.Repeat([]byte{'x'}, 1<<20)
	w.agent.text = text
	fifo := filepath.Join(t.TempDir(), "out")
	w.must("make fifo", syscall.Mkfifo(fifo, 0o600))
	r := execRequest("unread")
	r.Stdout = fifo
	_, err := w.service.Exec(ctxNS(t), r)
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "unread"})
	w.must("start", err)
	client, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	w.must("open fifo", err)
	defer client.Close()
	vm, err := w.service.the()
	w.must("find VM", err)
	vm.mu.Lock()
	p := vm.execs["unread"]
	vm.mu.Unlock()
	w.agent.exit(p.guest) <- 9
	if !eventually(func() bool { return p.pumps.reported() != nil }) {
		t.Fatal("no end of the exec")
	}
	w.agent.exit("") <- 0
	if got := w.wait(""); got != 0 {
		t.Errorf("exit status %d", got)
	}
	if got := w.wait("unread"); got != 9 {
		t.Errorf("exit status of the exec %d", got)
	}
	if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, or others: %v", len(got), len(text), err)
	}
}
