package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A hibernate pushes with the login that the controller has. It is asked at each push, so a changed one counts at once.
// Where it cannot be had, the hibernate fails, and the VM runs on. No file of the VM has it.
func TestPushWithLogin(t *testing.T) {
	const password = "a-word-of-the-cluster"
	w := newWorld(t)
	k := &knowing{w: w, noLogin: errdefs.ErrUnavailable}
	w.pods = k
	w.running()
	vm, _ := w.service.current()
	if _, err := w.capture(); !errdefs.IsUnavailable(errgrpc.ToNative(err)) {
		t.Fatalf("capture without an answer: %v", err)
	}
	if !eventually(func() bool { return vm.inState(Running) }) || !w.machine.running() {
		t.Fatalf("VM is %s", vm.state)
	}
	w.aborted++
	for _, word := range []string{password, password + "-2"} {
		k.mu.Lock()
		k.noLogin, k.login = nil, &nodev1.LoginResponse{Username: "u", Password: word}
		k.mu.Unlock()
		_, err := w.capture()
		w.must("capture", err)
		if l := w.store.pushed.Store.Login; l == nil || l.Password != word {
			t.Errorf("the worker was told %v", l)
		}
		w.must("abort", w.abort())
		w.aborted++
	}
	for _, repository := range k.logins {
		if repository != "r" {
			t.Errorf("asked for the login of %q", repository)
		}
	}
	files := 0
	err := filepath.WalkDir(vm.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if files++; strings.Contains(string(data), password) {
			t.Errorf("%s has it", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}
