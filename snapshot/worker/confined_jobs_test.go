package worker

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/store/storetest"
	"godwit.dev/godwit/snapshot/stream"
)

// watch looks at all processes that this one has started.
type watch struct {
	t  *testing.T
	mu sync.Mutex
	n  int // that were seen
}

func (w *watch) look(string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	children, _ := filepath.Glob("/proc/self/task/*/children")
	for _, path := range children {
		list, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has ended
		}
		for _, pid := range strings.Fields(string(list)) {
			w.each(pid)
		}
	}
}

func (w *watch) each(pid string) {
	tasks, _ := filepath.Glob("/proc/" + pid + "/task/*/status")
	for _, path := range tasks {
		status, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(status), "State:\tZ") {
			continue // it has ended
		}
		w.n++
		for _, want := range []string{"NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n",
			"Seccomp:\t2\n"} {
			if !strings.Contains(string(status), want) {
				w.t.Errorf("a worker that reads foreign bytes: no %q", want)
			}
		}
	}
}

func (w *watch) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.n
	w.n = 0
	return n
}

// meets has a connection's two ends watched: what it gets is foreign from then on.
type meets struct {
	*both
	w *watch
}

func (m meets) Pause(ctx context.Context) error { m.w.look("pause"); return m.both.Pause(ctx) }

func (m meets) Complete(ctx context.Context) error { m.w.look("complete"); return m.both.Complete(ctx) }

func (m meets) Load(ctx context.Context, d string, resume json.RawMessage, written *stream.Written) error {
	m.w.look("load")
	return m.both.Load(ctx, d, resume, written)
}

// Each job is done by a process that has no rights left when it hears from a registry or
// from another node. A kind of job that is new is to be among these.
func TestEachJobIsConfined(t *testing.T) {
	w := &watch{t: t}
	r := storetest.Start(t, &storetest.Registry{Script: func(int, *http.Request) storetest.Fault {
		w.look("request")
		return storetest.Fault{}
	}})
	c, cfg, shared := client(), r.Config(t, "vms/uid1"), r.Config(t, "vms/golden")
	push := pushJob(t, cfg)
	receipt, err := c.Push(t.Context(), push, nil)
	if err != nil || w.seen() == 0 {
		t.Fatal(receipt, err)
	}
	made := push
	made.Store, made.State = shared, nil
	made.Make = &snapshot.GoldenInfo{Image: digest.FromString("image"), VMM: "qemu", Memory: ramSize, VCPUs: 1}
	golden, err := c.Push(t.Context(), made, nil)
	if err != nil {
		t.Fatal(err)
	}
	place, fault := Place{Store: cfg, Digest: receipt.Digest}, file(t, nil)
	jobs := map[string]func() error{
		"Push": func() error { _, err := c.Push(t.Context(), push, nil); return err },
		"Open": func() error { _, err := c.Open(t.Context(), OpenJob{Store: cfg, Digest: receipt.Digest}); return err },
		"Fill": func() error {
			return c.Fill(t.Context(), FillJob{Store: cfg, Digest: receipt.Digest,
				Spaces: []Space{{Name: "ram0", File: file(t, nil)}}, State: file(t, nil)}, nil)
		},
		"Verify": func() error {
			_, err := c.Verify(t.Context(), VerifyJob{Store: cfg, Digest: receipt.Digest}, nil)
			return err
		},
		"Diff": func() error { _, err := c.Diff(t.Context(), DiffJob{From: place, To: place}); return err },
		"Copy": func() error {
			_, err := c.Copy(t.Context(), CopyJob{From: place, To: r.Config(t, "vms/copies"), Tag: "t"}, nil)
			return err
		},
		"Golden": func() error {
			_, err := c.Golden(t.Context(), GoldenJob{Store: shared, Digest: golden.Digest, Table: file(t, nil)})
			return err
		},
		"LazyFill": func() error { // up to the snapshot that it has read: what it gets is no userfaultfd
			err := c.LazyFill(t.Context(), LazyJob{Store: cfg, Digest: receipt.Digest, Space: "ram0",
				RAM: func(context.Context) (*WaitingRAM, error) {
					w.look("RAM")
					return &WaitingRAM{Fault: fault.File}, nil
				}}, nil)
			if err == nil {
				t.Error("a file is a userfaultfd")
			}
			return nil
		},
		"Send":    func() error { return w.move(t) },
		"Receive": func() error { return nil }, // the other end of that
	}
	for kind := range reflect.TypeFor[job]().Fields() {
		do := jobs[kind.Name]
		if do == nil {
			t.Errorf("it is not known whether %s is confined", kind.Name)
			continue
		}
		if err := do(); err != nil {
			t.Errorf("%s: %v", kind.Name, err)
		}
		if w.seen() == 0 && kind.Name != "Receive" {
			t.Errorf("%s: no worker was seen", kind.Name)
		}
	}
}

// move has both ends seen at once.
func (w *watch) move(t *testing.T) error {
	one, two := newEnd(t), newEnd(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	ram, state := file(t, noise(1<<20)), file(t, nil)
	if err := ram.Truncate(ramSize); err != nil {
		return err
	}
	m := meets{&both{state: state.File}, w}
	ref := snapshot.Ref{VM: "ns/vm", UID: "u", Operation: "op", Attempt: 1, Generation: 1}
	received := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- err
			return
		}
		defer conn.Close()
		f, err := conn.(*net.TCPConn).File()
		if err != nil {
			received <- err
			return
		}
		defer f.Close()
		received <- client().Receive(t.Context(), ReceiveJob{
			Arrival: m, Conn: Open(f), Ends: stream.Ends{Own: two, Peer: one.Certificate, Channel: "c"}, Ref: ref,
			Spaces: []SizedSpace{{Name: "ram0", Size: ramSize, File: file(t, nil)}}, State: file(t, nil),
		}, nil)
	}()
	_, err = client().Send(t.Context(), SendJob{
		Live: m, Address: l.Addr().String(), Ends: stream.Ends{Own: one, Peer: two.Certificate, Channel: "c"}, Ref: ref,
		Spaces: []Space{{Name: "ram0", File: ram}}, State: state,
	}, nil)
	if rerr := <-received; rerr != nil {
		return rerr
	}
	if m.complete != 1 || m.digest == "" {
		t.Error("the destination was not seen")
	}
	return err
}
