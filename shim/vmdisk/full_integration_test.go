//go:build integration

package vmdisk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/rootfs"
)

// TestFullDisk: the host's disk has no room for what is copied, or it runs full under way. The
// error says so and nothing is left.
func TestFullDisk(t *testing.T) {
	small := func(t *testing.T, dir string) {
		t.Helper()
		if err := unix.Mount("godwit-test", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	for name, tt := range map[string]struct {
		file string
		data []byte
		full string // the directory, next to the image, that is small
		want string
	}{
		"raw":                  {"disk/x.raw", content(), "vm", "host's disk"},
		"qcow2 is unpacked":    {"disk/x.qcow2", qcow(content()), "cache", "host's disk has 0 MiB left"},
		"qcow2 is copied":      {"disk/x.qcow2", qcow(content()), "vm", "host's disk"},
		"firmware of the node": {"disk/x.raw", content()[:4096], "vm", "host's disk"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			small(t, filepath.Join(p.dir, "..", tt.full))
			var err error
			if p.cache, err = rootfs.OpenCache(filepath.Join(p.dir, "..", "cache"), 1<<30); err != nil {
				t.Fatal(err)
			}
			p.put(t, tt.file, tt.data)
			code := filepath.Join(p.dir, "..", "code")
			if err := os.WriteFile(code, content()[:100<<10], 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := p.prepare(t, func(r *Request) {
				if strings.HasPrefix(name, "firmware") {
					r.Firmware = code
				}
			})
			if err == nil || !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v, want its class and %q", f, err, tt.want)
			}
			dirs := []string{p.dir, filepath.Join(p.dir, "..", "cache", "tmp")}
			if tt.full == "cache" { // what is unpacked whole stays there for the next VM
				dirs = append(dirs, filepath.Join(p.dir, "..", "cache", "verified"))
			}
			for _, dir := range dirs {
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("%s holds %v, %v", dir, left, err)
				}
			}
		})
	}
}
