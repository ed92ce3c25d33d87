//go:build integration

package badinput

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/snapshot/cache"
)

// reads are the requests for what snapshots consist of.
func reads(all []harness.Exchange) (paths []string) {
	for _, e := range all {
		if (e.Method == http.MethodGet || e.Method == http.MethodHead) && (strings.Contains(e.Path, "/blobs/") ||
			strings.Contains(e.Path, "/manifests/")) {
			paths = append(paths, e.Method+" "+e.Path)
		}
	}
	return paths
}

// withoutRegistry does something while the registry answers no request, and asserts that it was asked for no part of a
// snapshot.
func withoutRegistry(t *testing.T, h *harness.Harness, do func()) {
	t.Helper()
	h.Door.SetFault(func(int, *http.Request) harness.Fault { return harness.Fault{Status: http.StatusServiceUnavailable} })
	h.Door.Take()
	do()
	h.Door.SetFault(nil)
	if asked := reads(h.Door.Take()); len(asked) > 0 {
		t.Errorf("the registry was asked for %q", asked)
	}
}

// kept are the objects that a node keeps of snapshots.
func kept(t *testing.T, n *harness.Node) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "lib", "cache", "packs", "*", "blobs", "sha256-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// damage changes a byte in the middle of the largest object that a node keeps: a pack.
func damage(t *testing.T, n *harness.Node) (digest string) {
	t.Helper()
	var largest string
	var size int64
	for _, f := range kept(t, n) {
		if info, err := os.Stat(f); err == nil && info.Size() > size {
			largest, size = f, info.Size()
		}
	}
	f, err := os.OpenFile(largest, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err = f.ReadAt(b, size/2); err == nil {
		b[0] ^= 0xff
		_, err = f.WriteAt(b, size/2)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(filepath.Base(largest), "-", ":", 1)
}

func cacheUsage(t *testing.T, n *harness.Node) cache.Usage {
	t.Helper()
	u, err := cache.Open(filepath.Join(n.Dir, "lib", "cache", "packs"), 1).Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}
