package shim

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	digest "github.com/opencontainers/go-digest"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/rootfs"
	"godwit.dev/godwit/snapshot/worker"
)

// cachedDisks have the node's real cache.
type cachedDisks struct {
	*fakeDisks
	cache *rootfs.Cache
	read  *atomic.Int64 // bytes that were read to be kept
}

func (d cachedDisks) Link(ctx context.Context, digest, path string) error {
	return d.cache.Link(ctx, digest, path)
}

func (d cachedDisks) Keep(ctx context.Context, digest string, from io.Reader, path string) error {
	if err := d.call("keep disk"); err != nil {
		return err
	}
	return d.cache.Keep(ctx, digest, readerFunc(func(buf []byte) (int, error) {
		n, err := from.Read(buf)
		d.read.Add(int64(n))
		return n, err
	}), path)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(buf []byte) (int, error) { return f(buf) }

// workerOf is a store whose fills are done by a process of that script. It has its job in
// $job, and the disk as descriptor 5: RAM is 3, the writable disk is 4.
type workerOf struct {
	*fakeStore
	script string
}

func (s workerOf) Fill(ctx context.Context, j worker.FillJob, notify func(worker.Progress)) error {
	c := worker.Client{Command: []string{"/bin/sh", "-c", "read -r job; " + s.script}}
	return c.Fill(ctx, j, notify)
}

const rootDisk = "the root file system"

// withWorker is a VM asleep whose image this node lacks.
func withWorker(t *testing.T, script string) (*world, *rootfs.Cache, *atomic.Int64) {
	read := new(atomic.Int64)
	w := newWorld(t).asleep()
	cache, err := rootfs.OpenCache(filepath.Join(w.cfg.StateDir, "cache"), 1<<30)
	w.must("open cache", err)
	s := w.store.config.Spec
	s.Disks = append(s.Disks, spec.Disk{
		ID: "layer0", Serial: "layer0", Slot: 9, ReadOnly: true, Type: "erofs", Size: int64(len(rootDisk)),
		Digest: digest.FromString(rootDisk).String(),
	})
	ctx, sd := shutdown.WithShutdown(namespaces.WithNamespace(context.Background(), "ns"))
	t.Cleanup(sd.Shutdown)
	w.service = NewService(ctx, w.events, sd, func(*config.Config) (*Host, error) {
		h := w.host()
		h.Disks, h.Snapshots = cachedDisks{&fakeDisks{w.faults, w.disk, &w.kept}, cache, read}, func([]string) Snapshots {
			return workerOf{w.store, script}
		}
		return h, nil
	})
	return w, cache, read
}

const filled = `; echo '{"filled":{}}'`

// A read-only disk that a wake fetched is in the node's cache under its digest, with that content. A worker that lies
// about it ends the wake, and puts nothing there. Nothing is taken of what it sends beyond the disk's size.
func TestFetchedDiskIsWhatItsDigestSays(t *testing.T) {
	defer func(bound time.Duration) { pipeBound = bound }(pipeBound)
	pipeBound = 50 * time.Millisecond
	for name, c := range map[string]struct {
		script string
		fails  string
		is     func(error) bool
	}{
		"whole": {"printf '" + rootDisk + "' >&5" + filled, "", nil},
		"a process that stays": {"sleep 5 >/dev/null 2>&1 & printf '" + rootDisk + "' >&5" + filled, "",
			errdefs.IsInternal},
		"other bytes":  {"printf 'the root file syste!' >&5" + filled, "", errdefs.IsDataLoss},
		"too short":    {"printf 'the root file' >&5" + filled, "", errdefs.IsDataLoss},
		"too long":     {"printf '" + rootDisk + "!' >&5" + filled, "", errdefs.IsDataLoss},
		"far too long": {"head -c 64M /dev/zero >&5" + filled, "", errdefs.IsDataLoss},
		"nothing":      {": " + filled, "", errdefs.IsDataLoss},
		"a worker that fails": {`printf 'the' >&5; echo '{"error":{"class":"unavailable","message":"away"}}'; exit 1`,
			"", errdefs.IsUnavailable},
		"a worker that dies": {`printf '` + rootDisk + `' >&5; exit 3`, "", errdefs.IsInternal},
		"a cache that has no room": {"printf '" + rootDisk + "' >&5" + filled, "keep disk", func(err error) bool {
			return strings.Contains(err.Error(), errFake.Error())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, cache, read := withWorker(t, c.script)
			if c.fails != "" {
				w.at(c.fails, func() error { return errFake })
			}
			err := errgrpc.ToNative(w.create())
			if c.is == nil {
				w.must("create", err)
			} else if err == nil || !c.is(err) {
				t.Errorf("create: %v, of another class", err)
			}
			if n := read.Load(); n > int64(len(rootDisk)) {
				t.Errorf("%d bytes were taken of a disk of %d", n, len(rootDisk))
			}
			path := filepath.Join(t.TempDir(), "link")
			err = cache.Link(t.Context(), digest.FromString(rootDisk).String(), path)
			if c.is == nil || name == "a worker that dies" {
				data, rerr := os.ReadFile(path)
				if err != nil || rerr != nil || string(data) != rootDisk {
					t.Errorf("the cache has %q, %v", data, errors.Join(err, rerr))
				}
				return
			}
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the cache has something: %v", err)
			}
		})
	}
}

// Who goes on after the worker's answer writes into no file: the disk of the VM and of the
// cache is what was hashed.
func TestWorkerWritesAfterItsAnswer(t *testing.T) {
	w, cache, _ := withWorker(t, "readlink /proc/$$/fd/5 >&4; printf '"+rootDisk+"' >&5"+filled)
	w.must("create", w.create())
	j := w.journal()
	for _, d := range j.Disks {
		data, err := os.ReadFile(d.Path)
		w.must("read disk", err)
		switch {
		case d.ID == "layer0" && string(data) != rootDisk:
			t.Errorf("the VM's disk is %q", data)
		case d.ID != "layer0" && string(data[:5]) != "pipe:":
			t.Errorf("the worker had %q, not a pipe", data)
		}
	}
	w.must("link", cache.Link(t.Context(), digest.FromString(rootDisk).String(), filepath.Join(t.TempDir(), "link")))
}
