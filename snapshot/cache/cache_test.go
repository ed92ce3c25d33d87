package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/store"
)

func join(t *testing.T, c *Cache, repository string) (*Dir, *Lease) {
	t.Helper()
	l, err := c.Join(repository, "")
	if err != nil {
		t.Fatal(err)
	}
	return NewDir(l.Dir, l.Shared, nil), l
}

// keep adds a blob of n bytes that was used minutes ago.
func keep(t *testing.T, d *Dir, name string, n int, minutes int) {
	t.Helper()
	data := bytes.Repeat([]byte{1}, n)
	d.Keep(name, int64(n), store.Part{Data: data})
	at := time.Now().Add(-time.Duration(minutes) * time.Minute)
	if err := os.Chtimes(filepath.Join(d.path, name), at, at); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, d *Dir) (all []string) {
	t.Helper()
	files, err := os.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range files {
		all = append(all, f.Name())
	}
	return all
}

const mib = 1 << 20

// What was used longest ago goes first, over all repositories. One that a job uses is spared.
// The job is told that nothing may be added while that keeps the cache above its limit.
func TestEvict(t *testing.T) {
	c := Open(t.TempDir(), 4*mib)
	a, busy := join(t, c, "r/a")
	b, idle := join(t, c, "r/b")
	idle.Close()
	keep(t, a, "old", 3*mib, 60)
	keep(t, b, "older", 2*mib, 50)
	keep(t, b, "read", 1*mib, 40)
	keep(t, b, "new", 1*mib, 10)
	keep(t, b, "new-crashed", 1*mib, 45) // a writer died
	if f, _, ok := b.Open("read"); !ok {
		t.Error("nothing kept under read")
	} else {
		f.Close() // it is the newest now
	}
	evict := func() {
		t.Helper()
		if err := c.Evict(); err != nil {
			t.Fatal(err)
		}
	}
	evict()
	if d := cmp.Diff([]string{"old"}, names(t, a)); d != "" {
		t.Errorf("of the one in use: %s", d)
	}
	if d := cmp.Diff([]string{"read"}, names(t, b)); d != "" {
		t.Errorf("of the idle one: %s", d)
	}
	keep(t, a, "more", 3*mib, 1)
	evict()
	if d := cmp.Diff([]string{fullFile, "more", "old"}, names(t, a)); d != "" {
		t.Errorf("above the limit: %s", d)
	}
	if _, err := os.Stat(c.path(key("r/b"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty repository stays: %v", err)
	}
	a.Keep("no room", 1, store.Part{Data: []byte{1}})
	if slices.Contains(names(t, a), "no room") {
		t.Error("a full cache takes more")
	}
	if u := a.Usage(); u.UnkeptBytes != 1 || u.Unkept != errFull.Error() {
		t.Errorf("of what is not kept: %+v", u)
	}
	busy.Close()
	evict()
	if d := cmp.Diff([]string{"more"}, names(t, a)); d != "" {
		t.Errorf("after the job: %s", d)
	}
	u, err := c.Usage()
	if err != nil || u.EvictedBytes < 8*mib {
		t.Errorf("evicted %d bytes, %v", u.EvictedBytes, err)
	}
	if size, limit, err := c.Size(); err != nil || size < 3*mib || size > limit {
		t.Errorf("%d of %d bytes, %v", size, limit, err)
	}
	off := Open(c.dir, 0)
	if l, err := off.Join("r/a", ""); l != nil || err != nil {
		t.Errorf("a cache that is off gives a lease: %v, %v", l, err)
	}
	if err := off.Evict(); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Repositories(); err != nil || len(all) != 0 {
		t.Errorf("a cache that is off keeps %v, %v", all, err)
	}
}

// Jobs begin, keep and read while others evict and drop: what a lease has seen stays as long
// as the lease, and no step fails.
func TestJoinWhileOthersDelete(t *testing.T) {
	c := Open(t.TempDir(), 64<<10)
	var jobs, cleaners sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		cleaners.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.Evict(); err != nil {
					t.Error(err)
				}
				if err := c.Drop("r/1"); err != nil && !errdefs.IsUnavailable(err) {
					t.Error(err)
				}
				if _, err := c.Repositories(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range 4 {
		jobs.Go(func() {
			for i := range 50 {
				l, err := c.Join(fmt.Sprintf("r/%d", n%2), "")
				if err != nil {
					t.Error(err)
					return
				}
				d, name := NewDir(l.Dir, l.Shared, nil), fmt.Sprintf("blob%d", i%5)
				data := bytes.Repeat([]byte{byte(i % 5)}, 20<<10)
				d.Keep(name, int64(len(data)), store.Part{Data: data})
				kept := d.Usage().KeptBytes > 0 // else the cache was full
				f, _, ok := d.Open(name)
				if kept && !ok {
					t.Error("what a job has kept is gone before its end")
				}
				if ok {
					got, err := io.ReadAll(f)
					f.Close()
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("%d bytes of a file that was being replaced, %v", len(got), err)
					}
				}
				if err := c.Note(*d.Usage()); err != nil {
					t.Error(err)
				}
				l.Close()
			}
		})
	}
	jobs.Wait()
	close(stop)
	cleaners.Wait()
	if u, err := c.Usage(); err != nil || u.Hits == 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

// manifest keeps one that lists blobs, and the blobs, and returns its digest.
func manifest(t *testing.T, d *Dir, blobs ...string) digest.Digest {
	t.Helper()
	put := func(prefix, text string) digest.Digest {
		sum := digest.FromString(text)
		d.Keep(prefix+"sha256-"+sum.Encoded(), int64(len(text)), store.Part{Data: []byte(text)})
		return sum
	}
	m := v1.Manifest{Config: v1.Descriptor{Digest: put("", "config"), Size: 6}}
	for _, b := range blobs {
		m.Layers = append(m.Layers, v1.Descriptor{Digest: put("", b), Size: int64(len(b))})
	}
	m.Layers = append(m.Layers, v1.Descriptor{MediaType: "disk", Digest: digest.FromString("elsewhere"), Size: 9})
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return put(store.KeptManifest, string(data))
}

// A snapshot that is deleted takes along what no other has, the last one all; while a
// job is at it nothing goes. All of it is its owner's alone.
func TestForget(t *testing.T) {
	c := Open(t.TempDir(), 1<<30)
	d, l := join(t, c, "r/a")
	first := manifest(t, d, "one", "both")
	_ = filepath.WalkDir(c.path(key("r/a")), func(path string, e fs.DirEntry, err error) error {
		if info, ierr := e.Info(); err != nil || ierr != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v, %v", path, info.Mode(), err, ierr)
		}
		return nil
	})
	second := manifest(t, d, "two", "both")
	forget := func(dgst digest.Digest) {
		t.Helper()
		if err := c.Forget("r/a", dgst); err != nil {
			t.Fatal(err)
		}
	}
	forget(first)
	if n := len(names(t, d)); n != 6 {
		t.Errorf("%d objects while a job uses them", n)
	}
	if !c.Has("r/a", "", first, "disk") || c.Has("r/a", "", first) || c.Has("r/a", "", digest.FromString("x"), "disk") ||
		c.Has("r/b", "", first, "disk") {
		t.Error("what is there and what is not are mistaken for each other")
	}
	l.Close()
	forget(first)
	if n := len(names(t, d)); n != 4 { // manifest, config, two, both
		t.Errorf("%d objects of one snapshot: %v", n, names(t, d))
	}
	if c.Has("r/a", "", first, "disk") || !c.Has("r/a", "", second, "disk") {
		t.Error("the wrong snapshot was forgotten")
	}
	if err := os.Truncate(filepath.Join(d.path, "sha256-"+digest.FromString("two").Encoded()), 1); err != nil {
		t.Fatal(err)
	}
	if c.Has("r/a", "", second, "disk") {
		t.Error("a blob that is cut counts as there")
	}
	forget(second)
	forget(second)
	if _, err := os.Stat(c.path(key("r/a"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// What a worker that a snapshot has taken over may leave is neither followed nor in the way of
// eviction. A directory whose name lies belongs to no repository.
func TestJunk(t *testing.T) {
	c := Open(t.TempDir(), 64*mib)
	d, l := join(t, c, "r/a")
	secret := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600),
		os.Symlink(secret, filepath.Join(d.path, "link")),
		unix.Mkfifo(filepath.Join(d.path, "fifo"), 0o600),
		os.MkdirAll(filepath.Join(d.path, "dir", "dir"), 0o700),
		os.Symlink(secret, filepath.Join(d.path, fullFile)),
		os.WriteFile(c.path(key("r/a"), nameFile), []byte("r/b"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"link", "fifo", "dir", "missing"} {
		if f, _, ok := d.Open(name); ok {
			f.Close()
			t.Errorf("%s is opened", name)
		}
	}
	if all, err := c.Repositories(); err != nil || len(all) != 0 {
		t.Errorf("repositories %v, %v", all, err)
	}
	l.Close()
	crashed := c.path(gone + "x")
	if err := os.MkdirAll(filepath.Join(crashed, blobs), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Open(c.dir, 0).Evict(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(crashed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a deletion has left stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.path, "dir")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory stays: %v", err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "secret" {
		t.Errorf("the file that a link points to: %q, %v", data, err)
	}
}

// A disk that fills up, or that is slow, costs the rest of the cache and no error.
func TestWriteFails(t *testing.T) {
	c := Open(t.TempDir(), 1<<30)
	d, l := join(t, c, "r/a")
	defer l.Close()
	d.Keep("no/such/directory", 1, store.Part{Data: []byte{1}})
	d.Keep("after", 1, store.Part{Data: []byte{1}})
	if n, u := names(t, d), d.Usage(); len(n) != 0 || u.UnkeptBytes != 2 || !strings.Contains(u.Unkept, "no such file") {
		t.Errorf("kept after a failure: %v, told %+v", n, u)
	}
	slow := NewDir(l.Dir, l.Shared, nil)
	slow.spent = time.Hour
	slow.Keep("slow", 1, store.Part{Data: []byte{1}})
	if n, u := names(t, slow), slow.Usage(); len(n) != 0 || u.UnkeptBytes != 1 || u.Unkept != errSlow.Error() {
		t.Errorf("kept by one that is too slow: %v, told %+v", n, u)
	}
	noted := 0
	large := NewDir(l.Dir, l.Shared, func() { noted++ })
	for i := range 5 {
		large.Keep(fmt.Sprint(i), noteEvery/2, store.Part{Data: make([]byte, noteEvery/2)})
	}
	if noted != 2 {
		t.Errorf("the limit is looked at %d times", noted)
	}
}
