package shim

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/cio"
)

// heard is what a client was told.
type heard struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (h *heard) Write(data []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all.Write(data)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all.String()
}

// attach is what containerd's client does, with the names that State tells.
func (w *world) attach(exec string, stdin io.Reader) (cio.IO, *heard) {
	w.t.Helper()
	at, err := w.service.State(ctxNS(w.t), &taskapi.StateRequest{ID: "vm", ExecID: exec})
	w.must("state", err)
	out := &heard{}
	set := cio.NewFIFOSet(cio.Config{Stdin: at.GetStdin(), Stdout: at.GetStdout(), Stderr: at.GetStderr(),
		Terminal: at.GetTerminal()}, nil)
	client, err := cio.NewAttach(cio.WithStreams(stdin, out, io.Discard))(set)
	w.must("attach", err)
	w.t.Cleanup(client.Cancel)
	return client, out
}

// saysMore has all processes write on until each of those clients hears it, and answers all that
// they have written. What a client hears is what was written from some byte on.
func (w *world) saysMore(text string, all ...*heard) string {
	w.t.Helper()
	begun := len(text)
	for i := range 2000 {
		deaf := slices.ContainsFunc(all, func(h *heard) bool {
			got := h.String()
			return got == "" || len(got) > len(text) || text[len(text)-len(got):] != got
		})
		if !deaf && len(text) > begun {
			return text
		}
		if i%20 == 0 {
			text += fmt.Sprintf("more%d.", i)
			w.agent.says(text)
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.t.Fatalf("of %q the clients heard %v", text, all)
	return ""
}

// A client attaches to an exec, and to the task, at the node that they have moved to:
// it hears what comes from then on, which the log has too, types, goes, and another one comes;
// their end is its end.
func TestAttachAfterAMove(t *testing.T) {
	source, _ := accompanied(t, "before ")
	w := from(t, source)
	log := filepath.Join(t.TempDir(), "log")
	w.stdout = "file://" + log
	w.agent.says("before ")
	vm, _ := source.service.current()
	guest := vm.owner.execs["e"].guest
	w.agent.exit(guest)
	w.must("arrive", w.arrive())

	stdin, typing := io.Pipe()
	first, out := w.attach("e", stdin)
	_, task := w.attach("", nil)
	text := w.saysMore("before ", out, task)
	if _, err := io.WriteString(typing, "typed"); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool {
		w.agent.mu.Lock()
		defer w.agent.mu.Unlock()
		return string(w.agent.typed) == "typed"
	}) {
		t.Error("what it typed does not come")
	}
	first.Cancel()
	typing.Close()
	first.Wait()
	second, out := w.attach("e", nil)
	text = w.saysMore(text, out)
	w.agent.exit(guest) <- 7
	if status := w.wait("e"); status != 7 {
		t.Errorf("it ended with %d", status)
	}
	_, err := w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "e"})
	w.must("delete", err)
	second.Wait() // for its end of file
	// The task's own streams, of which the source had none, begin anew.
	want := 2*len(text) + len(text) - len("before ")
	if !eventually(func() bool { got, _ := os.ReadFile(log); return len(got) == want }) {
		got, _ := os.ReadFile(log)
		t.Errorf("the log has %d bytes, not %d: %q", len(got), want, got)
	}
}
