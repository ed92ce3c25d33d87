package bootstrap

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/fdtest"
	"godwit.dev/godwit/shim"
)

// Without a descriptor to ask with, the socket of a shim that lives is not removed. Nor is the
// default configuration taken for the task's.
func TestCleanUpWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := "unix://" + path
	if err := os.WriteFile(filepath.Join(dir, "bootstrap.json"), []byte(`{"address":"`+address+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if is, err := served(address); !is || err != nil {
		t.Errorf("served = %t, %v", is, err)
	}
	for left := range 2 {
		restore := fdtest.Exhaust(t, left)
		is, err := served(address)
		remove := removeSocket(t.Context(), dir)
		_, cleaned := cleanUp(t.Context(), "ns", "vm", dir)
		restore()
		if left == 0 && (!errdefs.IsUnavailable(err) || remove == nil || cleaned == nil) {
			t.Errorf("without descriptors served = %t, %v; remove = %v; clean up = %v", is, err, remove, cleaned)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("with %d descriptors the socket of a shim that serves is gone: %v", left, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "godwit-config"), []byte("/etc/other.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	restore := fdtest.Exhaust(t, 0)
	config, err := shim.ConfigPath(dir)
	restore()
	if config != "" || !errdefs.IsUnavailable(err) {
		t.Errorf("a configuration that cannot be read is %q, %v", config, err)
	}
	l.Close()
	if is, err := served(address); is || err != nil {
		t.Errorf("of who has ended served = %t, %v", is, err)
	}
}

// A socket that a shim has left which is gone is made anew; one that is served on stays.
func TestListenWithAnotherShim(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // a socket's path is short: unix(7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &params{namespace: "ns", id: "vm", address: "a", socketDir: dir}
	ctx := namespaces.WithNamespace(t.Context(), "ns")
	first, err := listen(ctx, b, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(ctx, b, false); !errors.Is(err, errServed) {
		t.Errorf("beside a shim that serves listen = %v", err)
	}
	first.listener.SetUnlinkOnClose(false)
	first.file.Close()
	first.listener.Close()
	second, err := listen(ctx, b, false)
	if err != nil {
		t.Fatalf("where a shim has left its socket listen = %v", err)
	}
	second.file.Close()
	second.listener.Close()
}

// How a task has ended is what its shim has noted. It is killed without a note, and unknown where the
// note cannot be read.
func TestEndWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	if end, err := endOf(dir); end.ExitStatus != killed || err != nil {
		t.Errorf("of a task without a note the end is %+v, %v", end, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "godwit-end"), []byte(`{"status":7,"at":"2026-01-02T03:04:05Z"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if end, err := endOf(dir); end.ExitStatus != 7 || end.ExitedAt.IsZero() || err != nil {
		t.Errorf("the end is %+v, %v", end, err)
	}
	restore := fdtest.Exhaust(t, 0)
	end, err := endOf(dir)
	restore()
	if err == nil {
		t.Errorf("without descriptors the end is %+v", end)
	}
}
