package shim

import (
	"path/filepath"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/shim/stdio"
)

// A client that closes stdin while the guest still starts the process has closed it.
func TestEarlyCloseIO(t *testing.T) {
	w := newWorld(t).running()
	fifo := filepath.Join(t.TempDir(), "stdin")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	req := execRequest("cat")
	req.Stdin = fifo
	_, err := w.service.Exec(ctxNS(t), req)
	w.must("exec", err)
	_, err = w.service.CloseIO(ctxNS(t), &taskapi.CloseIORequest{ID: "vm", ExecID: "cat", Stdin: true})
	w.must("close stdin", err)
	vm, err := w.service.current()
	w.must("find", err)
	p := vm.owner.execs["cat"]
	st, err := stdio.Open("ns", "cat", p.stdio, nil)
	w.must("open stdio", err)
	defer st.Close()
	w.must("run", vm.owner.run(t.Context(), p, st, client.Offsets{}, func() {}))
	end, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	w.must("open its end", err)
	defer unix.Close(end)
	if _, err := unix.Read(end, make([]byte, 1)); err != nil {
		t.Errorf("stdin has a writer still: %v", err)
	}
}

// A client may close stdin when that has been written down for the next node. It is told that it came too late, however
// long the upload takes that follows: success would be lost. A checkpoint's VM goes on here, and takes it.
func TestCloseIOAfterTheSave(t *testing.T) {
	for name, order := range map[string]func(*world) error{
		"move":      func(w *world) error { _, err := w.send(); return err },
		"hibernate": func(w *world) error { _, err := w.capture(); return err },
		"checkpoint": func(w *world) error {
			_, err := w.machineService().Capture(t.Context(), &machinev1.CaptureRequest{Ref: w.ref(), Repository: "r",
				Checkpoint: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := accompanied(t, "")
			var err error
			w.at("save state", func() error {
				_, err = w.service.CloseIO(ctxNS(t), &taskapi.CloseIORequest{ID: "vm", ExecID: "e", Stdin: true})
				return nil
			})
			w.must(name, order(w))
			if late := errdefs.IsFailedPrecondition(errgrpc.ToNative(err)); late != (name != "checkpoint") {
				t.Errorf("close of stdin after the save = %v", err)
			}
		})
	}
}
