package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/snapshot/store"
)

// A hibernate pushes with the login that the controller has. It is asked at each push, so a changed one counts at once.
// Where it cannot be had, the hibernate fails, and the VM runs on. No file of the VM has it.
func TestPushWithLogin(t *testing.T) {
	const password = "a-word-of-the-cluster"
	w := newWorld(t)
	k := &knowing{w: w, noLogin: errdefs.ErrPermissionDenied}
	w.pods = k
	w.running()
	vm, _ := w.service.current()
	_, err := w.capture()
	w.must("capture", err)
	if len(k.logins) > 0 {
		t.Errorf("a node without Kubernetes asked for the login of %q", k.logins)
	}
	w.must("abort", w.abort())
	w.aborted++
	w.cfg.Kubernetes = true
	if _, err := w.capture(); !errdefs.IsPermissionDenied(errgrpc.ToNative(err)) {
		t.Fatalf("capture without an answer: %v", err)
	}
	if !eventually(func() bool { return vm.inState(Running) }) || !w.machine.running() {
		t.Fatalf("VM is %s", vm.state)
	}
	w.aborted++
	for _, word := range []string{password, password + "-2"} {
		k.mu.Lock()
		k.noLogin, k.login = nil, &nodev1.LoginResponse{Username: "u", Password: word, SealKeys: [][]byte{[]byte(word)},
			SignKey: []byte(word)}
		k.mu.Unlock()
		_, err := w.capture()
		w.must("capture", err)
		if l := w.store.pushed.Store.Login; l == nil || l.Password != word {
			t.Errorf("the worker was told %v", l)
		}
		if at := w.store.pushed.Store.Keys; at == nil || string(at.Seal[0]) != word || string(at.Sign) != word {
			t.Errorf("the worker has not the keys: %v", at)
		}
		w.must("abort", w.abort())
		w.aborted++
	}
	if use := k.uses[0]; use != nodev1.Use_USE_CONTENT {
		t.Errorf("asked for %v", use)
	}
	for _, repository := range k.logins {
		if repository != "r" {
			t.Errorf("asked for the login of %q", repository)
		}
	}
	files := 0
	err = filepath.WalkDir(vm.dir, func(path string, d os.DirEntry, err error) error {
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

func loginWithKey(word string) *nodev1.LoginResponse {
	return &nodev1.LoginResponse{Username: "u", Password: word, SealKeys: [][]byte{[]byte(word)}}
}

// A fill whose login a registry takes no more goes on with the one that counts by then. While none can be had, that is
// the one of before. Until then the VM waits, also one of a node that has a wrong login of its own.
func TestFillWithANewLogin(t *testing.T) {
	bound, longest := fillLogin, longestFill
	fillLogin, longestFill = 50*time.Millisecond, 200*time.Millisecond
	t.Cleanup(func() { fillLogin, longestFill = bound, longest })
	for name, kubernetes := range map[string]bool{"of a class": true, "the node's own": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			k := &knowing{w: w, login: loginWithKey("1")}
			w.pods, w.cfg.Kubernetes = k, kubernetes
			w.lazily()
			var mu sync.Mutex
			takes, told := "1", []string(nil) // the last password that the registry takes; those that it was told
			w.store.pages = nil
			w.store.takes = func(cfg store.Config) error {
				mu.Lock()
				defer mu.Unlock()
				word := "own"
				if cfg.Login != nil {
					word = cfg.Login.Password
				}
				if cfg.Login != nil && (cfg.Keys == nil || string(cfg.Keys.Seal[0]) != word) {
					word += " without keys"
				}
				if told = append(told, word); word != takes {
					return fmt.Errorf("401: %w", errdefs.ErrUnauthenticated)
				}
				return nil
			}
			takes = "2"
			w.running()
			asked := func(word string, more int) func() bool {
				mu.Lock()
				defer mu.Unlock()
				from := len(told)
				return func() bool {
					mu.Lock()
					defer mu.Unlock()
					n := 0
					for _, said := range told[from:] {
						if said == word {
							n++
						}
					}
					return n >= more
				}
			}
			say := func(login *nodev1.LoginResponse, err error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				k.login, k.noLogin = login, err
			}
			before := "1"
			if !kubernetes {
				before = "own"
			}
			if !eventually(asked(before, 2)) {
				t.Fatalf("the registry was told %q", told)
			}
			say(nil, errdefs.ErrUnavailable)
			if !eventually(asked(before, 2)) {
				t.Errorf("while no operator answers the registry was told %q", told)
			}
			vm, _ := w.service.current()
			if !vm.inState(Running) || w.journal().Postcopy == nil || !strings.Contains(w.restoring(), "401") {
				t.Errorf("VM is %s, restore %q", vm.state, w.restoring())
			}
			say(loginWithKey("2"), nil)
			if !kubernetes {
				mu.Lock()
				takes = "own"
				mu.Unlock()
			}
			if !eventually(func() bool { return w.journal().Postcopy == nil }) {
				t.Errorf("RAM is never whole: the registry was told %q", told)
			}
			if !kubernetes && len(k.logins) > 0 {
				t.Errorf("asked for the login of %q", k.logins)
			}
		})
	}
}
