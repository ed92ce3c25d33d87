package vmdisk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/rootfs"
)

// place is an image that lies in a directory, as the native snapshotter has it, and the
// directories of a VM.
type place struct {
	image, dir string
	cache      *rootfs.Cache
}

func newPlace(t *testing.T) *place {
	t.Helper()
	base := t.TempDir()
	p := &place{image: filepath.Join(base, "image"), dir: filepath.Join(base, "vm")}
	for _, d := range []string{filepath.Join(p.image, "disk"), filepath.Join(p.image, "boot"), p.dir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.cache, err = rootfs.OpenCache(filepath.Join(base, "cache"), 1<<30); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *place) mounts() []*types.Mount {
	return []*types.Mount{{Type: "bind", Source: p.image, Options: []string{"rbind"}}}
}

func (p *place) put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.image, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *place) prepare(t *testing.T, change func(*Request)) (*Files, error) {
	t.Helper()
	r := Request{Mounts: p.mounts(), Most: 1 << 30, Dir: p.dir}
	change(&r)
	return Prepare(t.Context(), p.cache, r)
}

// content is a disk with zeros, which an archive brings in full, and an odd end.
func content() []byte {
	data := make([]byte, 3<<20+1000)
	r := rand.NewChaCha8([32]byte{})
	r.Read(data[:100<<10])
	r.Read(data[2<<20 : 2<<20+5000])
	copy(data[len(data)-7:], "the end")
	return data
}

// qcow is content as a qcow2 file with clusters of 64 KiB.
func qcow(data []byte) []byte {
	const cluster = 64 << 10
	be := binary.BigEndian
	out := make([]byte, 3*cluster)
	copy(out, "QFI\xfb")
	be.PutUint32(out[4:], 2)
	be.PutUint32(out[20:], 16)
	be.PutUint64(out[24:], uint64(len(data)))
	be.PutUint32(out[36:], 1)
	be.PutUint64(out[40:], cluster)
	be.PutUint64(out[cluster:], 2*cluster)
	for i := 0; i*cluster < len(data); i++ {
		part := data[i*cluster : min((i+1)*cluster, len(data))]
		if !slices.ContainsFunc(part, func(b byte) bool { return b != 0 }) {
			continue
		}
		be.PutUint64(out[2*cluster+8*i:], uint64(len(out)))
		out = append(out, append(part, make([]byte, cluster-len(part))...)...)
	}
	return out
}

// TestPrepare: the VM's own disk has the content and the size of the image's, in whole pages,
// and takes no space for zeros. The image is as it was.
func TestPrepare(t *testing.T) {
	want := content()
	for name, tt := range map[string]struct {
		file string
		data []byte
		size int64
	}{
		"raw":             {"disk/x.raw", want, 0},
		"qcow2":           {"disk/x.qcow2", qcow(want), 0},
		"qcow2 as img":    {"disk/x.img", qcow(want), 0},
		"raw as img":      {"disk/x.img", want, 0},
		"grown":           {"disk/x.raw", want, 10 << 20},
		"grown qcow2":     {"disk/x.qcow2", qcow(want), 10 << 20},
		"smaller is none": {"disk/x.raw", want, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.put(t, tt.file, tt.data)
			for range 2 { // the second VM from the same image
				f, err := p.prepare(t, func(r *Request) { r.Size = tt.size })
				if err != nil {
					t.Fatal(err)
				}
				size := max(tt.size, 3<<20+4096)
				got, err := os.ReadFile(f.Disk.Path)
				if err != nil || f.Path != "/"+tt.file || f.Disk.Size != size || int64(len(got)) != size {
					t.Fatalf("%+v, %d bytes, %v", f, len(got), err)
				}
				if !bytes.Equal(got[:len(want)], want) || bytes.ContainsFunc(got[len(want):], func(r rune) bool { return r != 0 }) {
					t.Error("the content is another")
				}
				var st unix.Stat_t
				if err := unix.Stat(f.Disk.Path, &st); err != nil || st.Blocks*512 > 1<<20 {
					t.Errorf("it takes %d bytes, %v", st.Blocks*512, err)
				}
				if err := os.Remove(f.Disk.Path); err != nil {
					t.Fatal(err)
				}
			}
			if now, err := os.ReadFile(filepath.Join(p.image, tt.file)); err != nil || !bytes.Equal(now, tt.data) {
				t.Errorf("the image has changed: %v", err)
			}
		})
	}
}

// TestSecondTask: what the guest wrote is found by the next task, its variables too, and
// what it may not write is taken anew.
func TestSecondTask(t *testing.T) {
	p := newPlace(t)
	p.put(t, "disk/x.raw", content())
	p.put(t, "boot/vmlinuz", []byte("kernel"))
	p.put(t, "boot/initrd", []byte("initramfs"))
	code, vars := filepath.Join(p.dir, "..", "code"), filepath.Join(p.dir, "..", "vars")
	for name, text := range map[string]string{code: "code", vars: "variables"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := func(r *Request) {
		r.Firmware, r.NVRAM, r.Kernel, r.Initrd = code, vars, "/boot/vmlinuz", "/boot/initrd"
	}
	f, err := p.prepare(t, all)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{f.Firmware.Path: "code", f.NVRAM.Path: "variables", f.Kernel.Path: "kernel",
		f.Initrd.Path: "initramfs"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if sum := sha256.Sum256([]byte("kernel")); f.Kernel.Digest != fmt.Sprintf("sha256:%x", sum) || f.Kernel.Size != 6 {
		t.Errorf("kernel %+v", f.Kernel)
	}
	for _, path := range []string{f.Disk.Path, f.NVRAM.Path} {
		if err := os.WriteFile(path, []byte("written"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(code, []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err = p.prepare(t, all); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{f.Disk.Path: "written", f.NVRAM.Path: "written", f.Firmware.Path: "newer"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

// TestRefusedLeavesNothing (issue 5, bad input).
func TestRefusedLeavesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, p *place)
		change  func(*Request)
		is      func(error) bool
		want    string
	}{
		"no disk": {func(*testing.T, *place) {}, nil, errdefs.IsNotFound, "carries no disk"},
		"two disks": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", content())
			p.put(t, "disk/b.img", content())
		}, nil, errdefs.IsInvalidArgument, "/disk/a.raw, /disk/b.img"},
		"named nothing": {func(*testing.T, *place) {}, func(r *Request) {
			r.Path = "/disk/a.raw"
		}, errdefs.IsNotFound, "/disk/a.raw"},
		"directory": {func(t *testing.T, p *place) {
			os.Mkdir(filepath.Join(p.image, "disk/a.raw"), 0o700)
		}, nil, errdefs.IsInvalidArgument, "not a file"},
		"pipe": {func(t *testing.T, p *place) {
			syscall.Mkfifo(filepath.Join(p.image, "disk/a.raw"), 0o600)
		}, nil, errdefs.IsInvalidArgument, "not a file"},
		"link outside": {func(t *testing.T, p *place) {
			os.Symlink("/etc/passwd", filepath.Join(p.image, "disk/a.raw"))
		}, nil, errdefs.IsInvalidArgument, "escapes"},
		"link above": {func(t *testing.T, p *place) {
			os.Symlink("../../vm/x", filepath.Join(p.image, "disk/a.raw"))
		}, nil, errdefs.IsInvalidArgument, "escapes"},
		"empty": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", nil)
		}, nil, errdefs.IsInvalidArgument, "empty"},
		"no qcow2": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.qcow2", content())
		}, nil, errdefs.IsInvalidArgument, "no qcow2"},
		"cut qcow2": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.qcow2", qcow(content())[:200<<10])
		}, nil, errdefs.IsInvalidArgument, "cut"},
		"too large": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", content())
		}, func(r *Request) { r.Most = 1 << 20 }, errdefs.IsInvalidArgument, "vm.max_disk"},
		"too large qcow": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.qcow2", qcow(content()))
		}, func(r *Request) { r.Most = 1 << 20 }, errdefs.IsInvalidArgument, "need 1 to 1048576"},
		"wished too large": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", content())
		}, func(r *Request) { r.Size = 1 << 40 }, errdefs.IsInvalidArgument, "vm.max_disk"},
		"no kernel": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", content())
		}, func(r *Request) { r.Kernel = "/boot/vmlinuz" }, errdefs.IsNotFound, "/boot/vmlinuz"},
		"no firmware": {func(t *testing.T, p *place) {
			p.put(t, "disk/a.raw", content())
		}, func(r *Request) { r.Firmware = "/none.fd" }, errdefs.IsFailedPrecondition, "/none.fd"},
		"after firmware": {func(*testing.T, *place) {}, func(r *Request) {
			r.Firmware, r.NVRAM = "/proc/self/exe", "/proc/self/exe"
		}, errdefs.IsNotFound, "carries no disk"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			tt.prepare(t, p)
			f, err := p.prepare(t, func(r *Request) {
				if tt.change != nil {
					tt.change(r)
				}
			})
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v, want its class and %q", f, err, tt.want)
			}
			for _, dir := range []string{p.dir, filepath.Join(p.dir, "..", "cache", "tmp"),
				filepath.Join(p.dir, "..", "cache", "verified")} {
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("%s holds %v, %v", dir, left, err)
				}
			}
		})
	}
}
