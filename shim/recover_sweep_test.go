package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"godwit.dev/godwit/shim/journal"
)

// A shim that dies between the directory of its VM and the first word in it leaves nothing to wait for. A journal is
// never swept away.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	host := w.host()
	for name, clean := range map[string]func(dir string) error{
		"by what containerd runs":     func(dir string) error { _, err := CleanUp(t.Context(), host, dir, ""); return err },
		"by order of a node's daemon": func(string) error { return Forget(t.Context(), host, "ns", "vm") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := host.Config.VMDir("ns", "vm")
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "node.json.tmp"), nil,
				0o600)); err != nil {
				t.Fatal(err)
			}
			if err := clean(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory: %v", err)
			}
		})
	}
	dir := host.Config.VMDir("ns", "vm")
	w.must("write", (&journal.Journal{Phase: journal.Fenced}).Write(dir))
	w.must("sweep", sweep(dir))
	if _, err := journal.Read(dir); err != nil {
		t.Error(err)
	}
	w.must("remove", os.RemoveAll(dir))
	w.must("sweep nothing", sweep(dir))
	w.must("sweep nowhere", sweep(filepath.Join(t.TempDir(), "a", "b")))
}
