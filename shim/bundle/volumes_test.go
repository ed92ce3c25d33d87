package bundle

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
)

// kubelet makes what a kubelet keeps of the pod, below a directory of the test.
type kubelet struct {
	t   *testing.T
	dir string // pods/UID
}

func newKubelet(t *testing.T) kubelet {
	t.Helper()
	return kubelet{t, filepath.Join(t.TempDir(), "kubelet", "pods", podUID)}
}

// volume makes the directory of a plugin, with files; a kubelet's AtomicWriter wrote them where versioned.
func (k kubelet) volume(plugin, name string, versioned bool, files ...string) string {
	k.t.Helper()
	dir := filepath.Join(k.dir, "volumes", plugin, name)
	content := dir
	if versioned {
		content = filepath.Join(dir, "..2026_11_28_01_02_03.1")
	}
	if err := os.MkdirAll(content, 0o755); err != nil {
		k.t.Fatal(err)
	}
	if versioned {
		must(k.t, os.Symlink(filepath.Base(content), filepath.Join(dir, newest)))
	}
	for _, f := range files {
		must(k.t, os.WriteFile(filepath.Join(content, f), []byte("text of "+f), 0o644))
		if versioned {
			must(k.t, os.Symlink(filepath.Join(newest, f), filepath.Join(dir, f)))
		}
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted mounts something for the length of the test.
func mounted(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	must(t, unix.Mount(source, target, kind, flags, data))
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestEmptyDir: mode and group of the directory are what a kubelet made of fsGroup.
func TestEmptyDir(t *testing.T) {
	k := newKubelet(t)
	disk, memory := k.volume(emptyDir, "disk", false), k.volume(emptyDir, "memory", false)
	mounted(t, "tmpfs", memory, "tmpfs", 0, "size=8m,mode=2770,gid=1234")
	must(t, os.Chown(disk, 0, 2000))
	must(t, unix.Chmod(disk, 0o2777))
	shm := filepath.Join(t.TempDir(), "sandboxes", "s1", "shm")
	must(t, os.MkdirAll(shm, 0o700))
	mounted(t, "shm", shm, "tmpfs", 0, "size=64m,mode=1777")
	b, err := load(t, member(t, bind(disk, "/disk", "rprivate", "rw"), bind(memory, "/memory", "rprivate", "ro"),
		bind(shm, "/dev/shm", "rprivate", "rw"), bind(disk, "/again", "rprivate", "rw")))
	must(t, err)
	own := Volume{Source: disk, Volume: spec.Volume{Kind: spec.VolumeDisk, Mode: 0o2777, GID: 2000}}
	want := []Volume{own, {Source: memory, Volume: spec.Volume{Kind: spec.VolumeMemory, Size: 8 << 20, Mode: 0o2770,
		GID: 1234}}, {Source: shm, Volume: spec.Volume{Kind: spec.VolumeMemory, Size: 64 << 20, Mode: 0o1777}}, own}
	if d := cmp.Diff(want, b.Member.Volumes); d != "" {
		t.Errorf("volumes (-want +got):\n%s", d)
	}
	mounts := []spec.VolumeMount{{Target: "/disk"}, {Target: "/memory", Options: []string{"rprivate", "ro"}},
		{Target: "/dev/shm"}, {Target: "/again"}}
	if d := cmp.Diff(mounts, b.Member.Container.Mounts); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
	if len(b.Copies) != 0 {
		t.Errorf("copies: %+v", b.Copies)
	}
}

func TestEmptyDirOfHugePages(t *testing.T) {
	dir := newKubelet(t).volume(emptyDir, "huge", false)
	if os.Geteuid() != 0 || unix.Mount("none", dir, "hugetlbfs", 0, "") != nil {
		t.Skip("needs root and hugetlbfs")
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	_, err := load(t, member(t, bind(dir, "/huge", "rw")))
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "huge pages") {
		t.Errorf("Load = %v", err)
	}
}

// TestSubPath: a kubelet binds a part of a volume elsewhere. The volume is found again, and the version of
// its files that was current is not asked for.
func TestSubPath(t *testing.T) {
	k := newKubelet(t)
	config := k.volume("kubernetes.io~configmap", "config", true, "app.conf")
	disk := k.volume(emptyDir, "cache", false)
	must(t, os.MkdirAll(filepath.Join(disk, "a", "b"), 0o755))
	memory := k.volume(emptyDir, "scratch", false)
	mounted(t, "tmpfs", memory, "tmpfs", 0, "size=1m")
	must(t, os.Mkdir(filepath.Join(memory, "part"), 0o755))
	csi := filepath.Join(k.volume("kubernetes.io~csi", "pv", false), "mount")
	must(t, os.Mkdir(csi, 0o755))
	mounted(t, "tmpfs", csi, "tmpfs", 0, "size=1m")
	must(t, os.Mkdir(filepath.Join(csi, "part"), 0o755))
	host := t.TempDir()
	sub := func(name, number, source string, dir bool) string {
		at := filepath.Join(k.dir, "volume-subpaths", name, "web", number)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if dir {
			must(t, os.Mkdir(at, 0o755))
		} else {
			must(t, os.WriteFile(at, nil, 0o644))
		}
		mounted(t, source, at, "", unix.MS_BIND, "")
		return at
	}
	current, err := filepath.EvalSymlinks(filepath.Join(config, "app.conf"))
	must(t, err)
	conf := sub("config", "0", current, false)
	must(t, os.Remove(current)) // a newer version came since
	b, err := load(t, member(t, bind(conf, "/etc/app.conf", "rprivate", "ro"),
		bind(sub("cache", "1", filepath.Join(disk, "a", "b"), true), "/cache", "rprivate", "rw"),
		bind(sub("scratch", "2", filepath.Join(memory, "part"), true), "/part", "rprivate", "rw"),
		bind(sub("logs", "3", host, true), "/logs", "rprivate", "ro")))
	must(t, err)
	var got []string
	for i, m := range b.Member.Container.Mounts {
		v := b.Member.Volumes[i]
		got = append(got, fmt.Sprintf("%s of %s %s at %s", m.Path, v.Kind, filepath.Base(v.Source), m.Target))
	}
	want := []string{"app.conf of synced config at /etc/app.conf", "a/b of disk cache at /cache",
		"part of memory scratch at /part"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("subPaths (-want +got):\n%s", d)
	}
	if len(b.Copies) != 1 || b.Copies[0].Destination != "/logs" {
		t.Errorf("the directory of the host: %+v", b.Copies)
	}
	_, err = load(t, member(t, bind(sub("pv", "4", filepath.Join(csi, "part"), true), "/pv", "rw")))
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "kubernetes.io/csi") {
		t.Errorf("part of a claim: %v", err)
	}
}

// TestFilesOfTheHost: what crictl and images mount that is no volume of a kubelet.
func TestFilesOfTheHost(t *testing.T) {
	k := newKubelet(t)
	log := filepath.Join(k.dir, "containers", "web", "0a1b2c3d")
	must(t, os.MkdirAll(filepath.Dir(log), 0o755))
	must(t, os.WriteFile(log, nil, 0o666))
	image := filepath.Join(t.TempDir(), "containers", "c1", "volumes", "0123abcd")
	must(t, os.MkdirAll(image, 0o755))
	must(t, os.WriteFile(filepath.Join(image, "data"), []byte("x"), 0o644))
	other := newKubelet(t).volume(emptyDir, "data", false)
	foreign := strings.Replace(other, podUID, "another", 1)
	must(t, os.MkdirAll(foreign, 0o755))
	b, err := load(t, member(t, bind(log, "/var/last-words", "rprivate", "rw"), bind(image, "/data", "rprivate", "rw"),
		bind(file(t, "x"), "/file", "rprivate", "rw"), bind(foreign, "/foreign", "ro")))
	must(t, err)
	if got := b.Member.Termination; got.Source != log || got.Destination != "/var/last-words" {
		t.Errorf("termination log: %+v", got)
	}
	var targets []string
	for _, c := range b.Copies {
		targets = append(targets, c.Destination)
	}
	if want := []string{"/data", "/file", "/foreign"}; !slices.Equal(targets, want) || len(b.Member.Volumes) != 0 {
		t.Errorf("copies of %q, want %q; volumes %+v", targets, want, b.Member.Volumes)
	}
	if len(b.Notes) != 2 || !strings.Contains(b.Notes[0]+b.Notes[1], "/file") {
		t.Errorf("notes: %q", b.Notes)
	}
	b, err = load(t, member(t, bind(log, "/dev/termination-log", "rw"), bind(file(t, "x"), "/second", "rw")))
	if err != nil || b.Member.Termination.Source != log {
		t.Errorf("the usual place: %+v, %v", b, err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	if _, err = load(t, member(t, bind(socket, "/socket", "rw"))); !errdefs.IsNotImplemented(err) {
		t.Errorf("a socket: %v", err)
	}
	csi := k.volume("kubernetes.io~csi", "pv", false)
	b, err = load(t, member(t, bind(csi, "/pv", "rw"), bind(t.TempDir(), "/host", "rw"),
		annotation(Prefix+"volumes", "copy")))
	if err != nil || len(b.Copies) != 2 {
		t.Errorf("volumes=copy: %+v, %v", b, err)
	}
}

// TestSyncedIsBounded: what is too large to be kept fresh is refused by name, with the bounds.
func TestSyncedIsBounded(t *testing.T) {
	for name, fill := range map[string]func(dir string) error{
		"4 MiB or 1000 files": nil,
		"bytes": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "0"), MaxSynced+1)
		},
		"files": func(dir string) error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			var files []string
			for i := range MaxSyncedFiles {
				files = append(files, fmt.Sprint(i))
			}
			dir := newKubelet(t).volume("kubernetes.io~secret", "many", true, files...)
			must(t, os.Truncate(filepath.Join(dir, "0"), 0))
			if fill != nil {
				must(t, fill(filepath.Join(dir, newest)))
			}
			b, err := load(t, member(t, bind(dir, "/secrets", "ro")))
			if fill == nil {
				must(t, err)
				if got, err := b.Member.Volumes[0].Files(); err != nil || len(got) != 2*MaxSyncedFiles+3 {
					t.Errorf("%d files, %v", len(got), err)
				}
				return
			}
			if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "4 MiB or 1000 files") ||
				!strings.Contains(err.Error(), "volume many") || !strings.Contains(err.Error(), "/secrets") {
				t.Errorf("Load = %v", err)
			}
		})
	}
}

// TestSyncedFiles: the files of one version are read, and a change of it in between is noticed.
func TestSyncedFiles(t *testing.T) {
	dir := newKubelet(t).volume("kubernetes.io~configmap", "config", true, "key")
	v := Volume{Source: dir, Volume: spec.Volume{Kind: spec.VolumeSynced}}
	files, err := v.Files()
	must(t, err)
	got := map[string]string{}
	for _, f := range files {
		got[f.GetPath()] = string(f.GetData()) + f.GetLink()
	}
	old := "..2026_11_28_01_02_03.1"
	want := map[string]string{"/": "", "/" + old: "", "/" + old + "/key": "text of key", "/..data": old,
		"/key": "..data/key"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	must(t, os.RemoveAll(dir))
	if _, err := v.Files(); err == nil {
		t.Error("a volume that is gone is read as an empty one")
	}
}
