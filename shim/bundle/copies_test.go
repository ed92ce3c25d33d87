package bundle

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// receive applies the requests as the guest does and returns the files by path.
func receive(t *testing.T, cs Copies) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for r, err := range cs.Requests(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(r); n > 4<<20-1024 {
			t.Errorf("a message has %d bytes, ttrpc takes 4 MiB", n)
		}
		for _, f := range r.GetFiles() {
			if f.GetAppend() && int(f.GetOffset()) != len(files[f.GetPath()]) {
				t.Errorf("%s continues at %d after %d bytes", f.GetPath(), f.GetOffset(), len(files[f.GetPath()]))
			}
			if !f.GetAppend() {
				files[f.GetPath()] = ""
			}
			files[f.GetPath()] += string(f.GetData()) + f.GetLink()
		}
	}
	return files
}

func TestCopiesContent(t *testing.T) {
	dir := t.TempDir()
	big := make([]byte, 3*batchBytes+17)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"a/b/small": []byte("s"), "a/big": big, "exact": big[:batchBytes],
		"empty": nil} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a/big", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	b, err := load(t, generate(t, bind(dir, "/data/", "ro"), bind(filepath.Join(dir, "exact"), "/etc/hosts")))
	if err != nil {
		t.Fatal(err)
	}
	mounts := b.Copies.Mounts()
	if len(mounts) != 2 || mounts[1].Target != "/etc/hosts" || slices.Contains(mounts[1].Options, "ro") {
		t.Errorf("a writable file is no mount of its own, or read-only: %v", mounts)
	}
	if mounts[0].Target != "/data" || !slices.Contains(mounts[0].Options, "ro") {
		t.Errorf("a read-only mount is writable in the guest: %v", mounts)
	}
	got := receive(t, b.Copies)
	for path, want := range map[string]string{
		"/data": "", "/data/a": "", "/data/a/b/small": "s", "/data/a/big": string(big),
		"/data/exact": string(big[:batchBytes]),
		"/data/empty": "", "/data/link": "a/big", "/etc/hosts": string(big[:batchBytes]),
	} {
		if data, ok := got[path]; !ok || data != want {
			t.Errorf("%s has %d bytes (there: %v), want %d", path, len(data), ok, len(want))
		}
	}
	if only := receive(t, b.Copies.Select("/etc/hosts")); len(only) != 1 {
		t.Errorf("Only gives %d files", len(only))
	}
}

// A file with many names, as busybox has, counts once and is sent once. A guest that knows no hard links gets each.
func TestCopiesOfHardLinks(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	large := filepath.Join(dir, "a")
	if err := os.WriteFile(large, []byte("content"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, MaxCopies/2+1); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(dir, "b"), filepath.Join(dir, "c"), filepath.Join(other, "d")} {
		if err := os.Link(large, name); err != nil {
			t.Fatal(err)
		}
	}
	b, err := load(t, generate(t, bind(dir, "/data", "ro")))
	if err != nil {
		t.Fatalf("a file with three names counts more than once: %v", err)
	}
	links := map[string]string{}
	var sent int64
	for r, err := range b.Copies.Requests(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.GetFiles() {
			if sent += int64(len(f.GetData())); f.GetMode()&unix.S_IFMT == unix.S_IFMT {
				links[f.GetPath()] = f.GetLink()
			}
		}
	}
	if len(links) != 2 || links["/data/b"] != "/data/a" || links["/data/c"] != "/data/a" || sent != MaxCopies/2+1 {
		t.Errorf("hard links %v, %d bytes", links, sent)
	}
	_, err = load(t, generate(t, bind(dir, "/data", "ro"), bind(other, "/more", "ro")))
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("two mounts may be two file systems, and each has the file: %v", err)
	}
	var last error
	for _, err := range b.Copies.RequestsInFull(t.Context()) {
		last = err
	}
	if !errdefs.IsResourceExhausted(last) {
		t.Errorf("the limit holds for what is sent without hard links: %v", last)
	}
}

func TestCopiesStopEarly(t *testing.T) {
	path := file(t, strings.Repeat("x", 3*batchBytes))
	cs := Copies{{Source: path, Destination: "/x"}}
	for _, err := range cs.Requests(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range cs.Requests(t.Context()) {
		last = err
	}
	if last == nil {
		t.Error("a source that is gone gives no error")
	}
}

func TestCopiesRefuse(t *testing.T) {
	huge := file(t, "")
	if err := os.Truncate(huge, MaxCopies+1); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, generate(t, bind(huge, "/huge", "ro"))); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "/huge") {
		t.Errorf("Load = %v, want ResourceExhausted naming the mount", err)
	}
	if _, err := load(t, generate(t, bind(t.TempDir(), "/d"), annotation(Prefix+"volumes", "copy"))); err != nil {
		t.Errorf("volumes=copy: %v", err)
	}
}

// TestFitCopies: copies that are larger than the writable disk are refused before a
// guest boots; those that a tmpfs of the guest takes do not count.
func TestFitCopies(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 2<<20); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		destination string
		mounts      []specs.Mount
		disk        int64
		fits        bool
	}{
		"larger disk": {destination: "/data/file", disk: 3 << 20, fits: true},
		"same size":   {destination: "/data/file", disk: 2 << 20},
		"in a tmpfs": {destination: "/tmp/a/file", mounts: []specs.Mount{{Destination: "/tmp/"}}, disk: 1 << 20,
			fits: true},
		"beside the tmpfs": {destination: "/tmpfile", mounts: []specs.Mount{{Destination: "/tmp"}}, disk: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Bundle{Copies: Copies{{Source: file, Destination: c.destination}}}
			var err error
			if b.copied, err = b.Copies.measure(c.mounts); err != nil {
				t.Fatal(err)
			}
			if err := b.FitCopies(c.disk); (err == nil) != c.fits || err != nil && !errdefs.IsResourceExhausted(err) {
				t.Errorf("copies of 2 MiB for a disk of %d: %v", c.disk, err)
			}
		})
	}
	for copied, room := range map[int64]int64{0: 0, 300: 0, 2 << 20: 128 << 20, 128 << 20: 128 << 20,
		129 << 20: 256 << 20} {
		if got := (&Bundle{copied: copied}).CopyRoom(); got != room {
			t.Errorf("room for %d bytes: %d, want %d", copied, got, room)
		}
	}
	if err := new(Bundle).FitCopies(0); err != nil {
		t.Errorf("no copies: %v", err)
	}
}
