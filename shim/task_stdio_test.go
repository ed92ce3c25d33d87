package shim

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// An exec whose terminal cannot be opened fails its Start by class, was never started,
// and can be deleted; the task runs on.
func TestExecOnABrokenFifo(t *testing.T) {
	w := newWorld(t).running()
	dir := t.TempDir()
	for name, r := range map[string]*taskapi.ExecProcessRequest{
		"missing":   {Stdout: filepath.Join(dir, "none"), Terminal: true},
		"directory": {Stdout: dir, Terminal: true},
		"stdin":     {Stdin: filepath.Join(dir, "none")},
		"scheme":    {Stdout: "gopher:///x"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := execRequest("broken")
			r.ID, r.ExecID, r.Spec = "vm", "broken", spec.GetSpec()
			_, err := w.service.Exec(ctxNS(t), r)
			w.must("exec", err)
			_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "broken"})
			if err == nil || (name == "missing" || name == "stdin") && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				t.Errorf("start: %v", err)
			}
			_, err = w.service.Delete(ctxNS(t), &taskapi.DeleteRequest{ID: "vm", ExecID: "broken"})
			w.must("delete exec", err)
			state, err := w.service.State(ctxNS(t), &taskapi.StateRequest{ID: "vm"})
			if err != nil || state.GetStatus().String() != "RUNNING" {
				t.Errorf("the task is %v, %v", state.GetStatus(), err)
			}
		})
	}
}

// An exec may end while its output is not read. It tells its own status when the VM ends, not that of a process that
// was killed, and its output is there.
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
	vm, err := w.service.current()
	w.must("find VM", err)
	vm.mu.Lock()
	p := vm.owner.execs["unread"]
	vm.mu.Unlock()
	w.agent.exit(p.guest) <- 9
	if !eventually(func() bool { return p.pump.Reported() != nil }) {
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

// A client whose fifos are opened after its exec has ended gets the output, and its end.
func TestExecIsReadWhenItIsOver(t *testing.T) {
	w := newWorld(t).running()
	w.agent.text = bytes.Repeat([]byte{'x'}, 1<<10)
	dir := t.TempDir()
	r := execRequest("quick")
	r.Stdout, r.Stderr = filepath.Join(dir, "out"), filepath.Join(dir, "err")
	w.must("make fifo", syscall.Mkfifo(r.Stdout, 0o600))
	w.must("make fifo", syscall.Mkfifo(r.Stderr, 0o600))
	_, err := w.service.Exec(ctxNS(t), r)
	w.must("exec", err)
	_, err = w.service.Start(ctxNS(t), &taskapi.StartRequest{ID: "vm", ExecID: "quick"})
	w.must("start", err)
	vm, err := w.service.current()
	w.must("find VM", err)
	vm.mu.Lock()
	p := vm.owner.execs["quick"]
	vm.mu.Unlock()
	w.agent.exit(p.guest) <- 0
	if got := w.wait("quick"); got != 0 {
		t.Errorf("exit status %d", got)
	}
	time.Sleep(50 * time.Millisecond)
	for path, want := range map[string]int{r.Stdout: 1 << 10, r.Stderr: 1 << 10} {
		// so that a lost end fails the test, and does not hang it
		client, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		w.must("open fifo", err)
		defer client.Close()
		w.must("set deadline", client.SetReadDeadline(time.Now().Add(time.Minute)))
		got, err := io.ReadAll(client)
		if err != nil || len(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d", filepath.Base(path), len(got), err, want)
		}
	}
}

// The output of a VM that had none has none after a wake either, however often it sleeps, unless the order names a
// place. A VM that had a place gets the configured one, which its owner alone reads.
func TestOutputOfASleeper(t *testing.T) {
	for _, c := range []struct {
		before, order string
		want          bool
	}{{"", "", false}, {"fifo", "", true}, {"", "other", true}} {
		t.Run(c.before+c.order, func(t *testing.T) {
			w := newWorld(t)
			if c.before != "" {
				w.stdout = filepath.Join(t.TempDir(), "before")
				w.must("make it", os.WriteFile(w.stdout, nil, 0o600))
			}
			path := filepath.Join(t.TempDir(), "logs", "ns-vm.log")
			w.cfg.StdioURI = "file://" + filepath.Dir(path) + "/{namespace}-{id}.log"
			w.asleep()
			if c.order != "" {
				path += ".other"
			}
			w.stdout, w.stderr = "file://"+path, "file://"+path
			for range 2 {
				w.must("create", w.create())
				w.must("start", w.start())
				if info, err := os.Stat(path); c.want != (err == nil) || err == nil && info.Mode().Perm() != 0o600 {
					t.Fatalf("log: %v, %v", info, err)
				}
				if got := w.journal().Stdio.Stdout; c.want != (got == w.stdout) {
					t.Errorf("the journal has %q", got)
				}
				w.sleeps()
			}
		})
	}
}

// The log of a VM that was booted here is its client's.
func TestLogOfABootedVM(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "log")
	w.stdout = "file://" + path
	w.running()
	vm, err := w.service.current()
	w.must("find", err)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 ||
		vm.owner.logFile(vm.owner.init.stdio) != nil {
		t.Errorf("%v, %v, or the log is bounded", info.Mode(), err)
	}
}

// The log that the configuration names for a VM is bounded also when the VM was booted here: godwit run writes it.
func TestConfiguredLogOfABootedVM(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.cfg.StdioURI = "file://" + dir + "/{namespace}-{id}.log"
	uri, err := w.cfg.TaskOutput("ns", "vm")
	w.must("configured output", err)
	w.stdout = uri.String()
	w.running()
	vm, err := w.service.current()
	w.must("find", err)
	if info, err := os.Stat(uri.Path); err != nil || info.Mode().Perm() != 0o600 ||
		vm.owner.logFile(vm.owner.init.stdio) == nil {
		t.Errorf("%v, %v, or the log is not bounded", info, err)
	}
}
