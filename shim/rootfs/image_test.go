package rootfs

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// layered is an overlay as the snapshotter overlayfs has it for a new container.
func layered(t *testing.T, dir, container string) []*types.Mount {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, text := range map[string]string{"1/etc/motd": "old", "2/etc/motd": "new", "1/bin/sh": "#!"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	upper := filepath.Join(dir, container, "fs")
	if err := os.MkdirAll(upper, 0o755); err != nil {
		t.Fatal(err)
	}
	return []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{"workdir=" + upper + "/../work",
		"upperdir=" + upper, "lowerdir=" + filepath.Join(dir, "2") + ":" + filepath.Join(dir, "1")}}}
}

// TestImageIsShared: the containers of an image have one disk, and none of their own to write to.
func TestImageIsShared(t *testing.T) {
	dir := t.TempDir()
	dst := Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm")}
	first, err := PrepareImage(t.Context(), layered(t, dir, "a"), dst)
	if err != nil {
		t.Fatal(err)
	}
	mounts := layered(t, dir, "b")
	second, err := PrepareImage(t.Context(), mounts, dst)
	if err != nil || len(first) != 1 || len(second) != 1 || first[0] != second[0] || first[0].Type != "erofs" {
		t.Errorf("disks %+v and %+v, %v", first, second, err)
	}
	if n := entries(t, dst.Dir); n != 1 {
		t.Errorf("%d entries in the VM's directory, want the links alone", n)
	}
	upper := filepath.Join(dir, "b", "fs")
	if err := os.WriteFile(filepath.Join(upper, "written"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	third, err := PrepareImage(t.Context(), mounts, dst)
	if err != nil || len(third) != 1 || third[0].Digest == first[0].Digest {
		t.Errorf("what was written above the image is lost: %+v, %v", third, err)
	}
	dst.Program = Program{Name: "/bin/none"}
	if _, err := PrepareImage(t.Context(), layered(t, dir, "c"), dst); !errdefs.IsNotFound(err) {
		t.Errorf("a program that is not there: %v", err)
	}
	dst.Program.Name = "/bin/sh"
	if _, err := PrepareImage(t.Context(), layered(t, dir, "c"), dst); err != nil {
		t.Errorf("a program that is there: %v", err)
	}
}

// waiting tells when somebody waits for the end of a context.
type waiting struct {
	context.Context
	begun chan struct{}
	once  sync.Once
}

func (w *waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.begun) })
	return w.Context.Done()
}

// TestBuildWithoutItsCaller: who asks again finds what was built meanwhile.
func TestBuildWithoutItsCaller(t *testing.T) {
	dir := t.TempDir()
	dst := Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm")}
	mounts := layered(t, dir, "a")
	p, err := readPlan(mounts)
	if err != nil {
		t.Fatal(err)
	}
	key, err := chainKey(p.dirs)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := dst.Cache.lock(t.Context(), key[:2]) // the build waits for this
	if err != nil {
		t.Fatal(err)
	}
	parent, cancel := context.WithCancelCause(t.Context())
	ctx := &waiting{Context: parent, begun: make(chan struct{})}
	gone := errors.New("the caller is gone")
	answered := make(chan error, 1)
	go func() {
		_, err := PrepareImage(ctx, mounts, dst)
		answered <- err
	}()
	<-ctx.begun
	cancel(gone)
	if err := <-answered; !errors.Is(err, gone) {
		t.Errorf("PrepareImage = %v", err)
	}
	unlock()
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := os.Stat(dst.Cache.path("chains", key)); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("nothing was built: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := PrepareImage(ctx, mounts, dst); !errors.Is(err, gone) {
		t.Errorf("a caller that is gone at once: %v", err)
	}
}

// TestBuildGoesOn is the other half: a build whose caller has gone while it waited comes to its end.
func TestBuildGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error, 1)
	answered := make(chan error, 1)
	go func() {
		_, err := finish(ctx, func(ctx context.Context) ([]Disk, error) {
			close(begun)
			<-answered // not before the caller had its answer
			ended <- ctx.Err()
			return nil, nil
		})
		answered <- err
		answered <- nil
	}()
	<-begun
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the build has the caller's end: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the build did not end")
	}
}

// TestImageFiles: a file of containerd's is copied, because it may go with its container.
func TestImageFiles(t *testing.T) {
	dir := t.TempDir()
	dst := Paths{Cache: openCache(t, dir, 1<<30), Dir: filepath.Join(dir, "vm")}
	path, data := filepath.Join(dir, "layer.erofs"), bytes.Repeat([]byte("e"), 8192)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := []*types.Mount{{Type: "erofs", Source: path, Options: []string{"ro", "loop"}}}
	disks, err := PrepareImage(t.Context(), mounts, dst)
	if err != nil || len(disks) != 1 || disks[0].Digest != digest.FromBytes(data).String() {
		t.Fatalf("PrepareImage = %+v, %v", disks, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(disks[0].Path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the disk has gone with the file: %v", err)
	}
	if _, err := PrepareImage(t.Context(), mounts, dst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer that is gone: %v", err)
	}
}

// TestScratch: the disk of a pod is made once.
func TestScratch(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		path, size, err := PrepareScratch(dir, 64<<20)
		if err != nil || size != 64<<20 || filepath.Dir(path) != dir {
			t.Errorf("PrepareScratch = %s, %d, %v", path, size, err)
		}
	}
	if _, _, err := PrepareScratch(t.TempDir(), 1); err == nil {
		t.Error("a disk of one byte was made")
	}
}
