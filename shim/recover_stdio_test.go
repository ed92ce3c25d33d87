package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/stdio"
)

// taken reports whether the guest's output is taken, all of it.
func (vm *VM) taken(bytes int) bool {
	return eventually(func() bool {
		vm.mu.Lock()
		p := vm.owner.init.pump
		vm.mu.Unlock()
		return p != nil && p.Offsets().Stdout == uint64(bytes) && p.Offsets().Stderr == uint64(bytes)
	})
}

// fifos are those of a client of a task.
func fifos(t *testing.T) stdio.URIs {
	s := stdio.URIs{Stdout: filepath.Join(t.TempDir(), "out"), Stderr: filepath.Join(t.TempDir(), "err")}
	for _, path := range []string{s.Stdout, s.Stderr} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// A VM that runs on under a successor does not wait for a client that took its fifos along.
func TestAdoptedWithoutAClient(t *testing.T) {
	text := string(make([]byte, 1<<20)) // more than a fifo holds
	t.Run("given back", func(t *testing.T) {
		w := newWorld(t)
		w.agent.says("")
		vm, m, _ := orphan(t, w, true)
		dir := t.TempDir()
		vm.owner.init.stdio = stdio.URIs{Stdout: filepath.Join(dir, "out"), Stderr: filepath.Join(dir, "err")}
		_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
		w.must("abort", err)
		w.agent.says(text)
		if !vm.taken(len(text)) {
			t.Errorf("the guest's output stands at %+v", vm.owner.init.pump.Stop())
		}
	})
	t.Run("woken", func(t *testing.T) {
		w := newWorld(t).asleep()
		uris := fifos(t)
		w.stdout, w.stderr = uris.Stdout, uris.Stderr
		w.agent.says("")
		old, _ := w.halfAwake(1)
		w.must("remove fifos", errors.Join(os.Remove(uris.Stdout), os.Remove(uris.Stderr)))
		next := w.succeed(old)
		(&adoption{vm: next}).finishWake(t.Context())
		w.agent.says(text)
		if !next.taken(len(text)) {
			t.Errorf("the guest's output stands at %+v", next.owner.init.pump.Stop())
		}
	})
}

// The same holds for a client that leaves after the successor has looked.
func TestAdoptedWhoseClientLeaves(t *testing.T) {
	w := newWorld(t)
	w.agent.says("")
	uris := fifos(t)
	var clients []*os.File
	for _, path := range []string{uris.Stdout, uris.Stderr} {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		w.must("open as a client", err)
		clients = append(clients, f)
	}
	vm, m, _ := orphan(t, w, true)
	vm.owner.init.stdio = uris
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	for _, f := range clients {
		f.Close()
	}
	text := string(make([]byte, 1<<20))
	w.agent.says(text)
	if !vm.taken(len(text)) {
		t.Errorf("the guest's output stands at %+v", vm.owner.init.pump.Stop())
	}
}

// A logging program is no part of the cgroup of a VM that was adopted, as of any other.
func TestLoggerOfAnAdoptedVM(t *testing.T) {
	w := newWorld(t)
	w.agent.says("")
	vm, m, _ := orphan(t, w, true)
	dir := t.TempDir()
	logger := filepath.Join(dir, "logger")
	root := t.TempDir()
	files(t, root, map[string]string{"cgroup.procs": "", "vm/cgroup.procs": ""})
	task := filepath.Join(root, "vm")
	// Where it is born is the kernel's business, which this is not.
	script := "#!/bin/sh\necho $$ >" + task + "/cgroup.procs\nexec 5>&-\nexec cat <&3 >" + dir + "/log\n"
	w.must("write logger", os.WriteFile(logger, []byte(script), 0o700))
	vm.owner.init.stdio = stdio.URIs{Stdout: "binary://" + logger}
	w.must("name cgroup", vm.write(func(j *journal.Journal) { j.Cgroup = []string{task} }))
	_, err := m.Abort(t.Context(), &machinev1.AbortRequest{Ref: w.ref()})
	w.must("abort", err)
	w.agent.says("logged")
	if !eventually(func() bool { got, _ := os.ReadFile(filepath.Join(dir, "log")); return string(got) == "logged" }) {
		t.Error("the logger has nothing")
	}
	pid := strconv.Itoa(vm.owner.init.pump.LoggerPID())
	if got := content(t, filepath.Join(root, "cgroup.procs")); got != pid {
		t.Errorf("the logger, %s, is in the task's cgroup still: %q left", pid, got)
	}
}
