package shim

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"godwit.dev/godwit/guest"
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
	vm, err := w.service.the()
	w.must("find", err)
	p := vm.execs["cat"]
	st, err := openStreams("ns", "cat", p.stdio)
	w.must("open stdio", err)
	defer st.close()
	w.must("run", vm.run(t.Context(), p, st, guest.Offsets{}, func() {}))
	if _, err := st.hold.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("stdin is still open: %v", err)
	}
}
