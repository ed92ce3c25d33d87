package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/spec"
)

// found is a directory of the host that is a volume of the pod.
type found struct {
	Volume
	foreign string // why no VM can have it; empty: it can
}

// Paths of a kubelet: pods/UID/volumes/PLUGIN/NAME, and pods/UID/volume-subpaths/NAME/CONTAINER/NUMBER, where
// it binds a part of a volume.
var (
	volumePath  = regexp.MustCompile(`^(.*/pods/([^/]+))/volumes/([^/]+~[^/]+)/([^/]+)(?:/(.*))?$`)
	subPathPath = regexp.MustCompile(`^(.*/pods/([^/]+))/volume-subpaths/([^/]+)/[^/]+/[0-9]+$`)
)

// syncedPlugins keep files of Kubernetes's objects.
var syncedPlugins = []string{"kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~projected",
	"kubernetes.io~downward-api"}

// csiMount is the directory of a CSI volume in which the driver mounts it.
const csiMount = "mount"

const emptyDir = "kubernetes.io~empty-dir"

// findVolume answers which volume of the pod a bind mount's source belongs to, and where below it; nil: none. source
// has no symbolic links, given may have some.
func findVolume(source, given, target string, c cri) (v *found, below string, err error) {
	if target == devShm && strings.HasSuffix(source, "/"+c.sandbox+"/shm") {
		v, err = sharedMemory(source)
		return v, "", err
	}
	if m := subPathPath.FindStringSubmatch(source); m != nil && m[2] == c.uid {
		return findSubPath(source, m[1], m[3])
	}
	m := volumePath.FindStringSubmatch(source)
	if m == nil || m[2] != c.uid {
		return nil, "", nil
	}
	dir := strings.TrimSuffix(strings.TrimSuffix(source, m[5]), "/")
	if m[5] == csiMount || m[5] == "" {
		if v, err = readDirect(source, given); v != nil || err != nil {
			return v, "", err
		}
	}
	v, err = readVolume(dir, m[3])
	return v, m[5], err
}

const (
	devShm = "/dev/shm"
	// shmSize is what CRI gives a pod.
	shmSize = 64 << 20
)

// sharedMemory is what CRI mounts for all containers of a pod. With the sandbox API nothing is mounted there.
func sharedMemory(dir string) (*found, error) {
	mounted, err := mount.Lookup(dir)
	if err != nil {
		return nil, fmt.Errorf("find mount of %s: %w", dir, err)
	}
	size, memory, err := tmpfsSize(dir)
	if !memory || mounted.Mountpoint != dir {
		size = shmSize
	}
	return &found{Volume: Volume{Source: dir, Volume: spec.Volume{Kind: spec.VolumeMemory, Size: size, Mode: 0o1777}}}, err
}

// readVolume describes the directory that a plugin of the kubelet has made.
func readVolume(dir, plugin string) (*found, error) {
	v := &found{Volume: Volume{Source: dir}}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	v.Mode, v.UID, v.GID = st.Mode&0o7777, st.Uid, st.Gid
	switch {
	case slices.Contains(syncedPlugins, plugin):
		v.Kind = spec.VolumeSynced
	case plugin == emptyDir:
		return v, v.readEmptyDir()
	default:
		v.foreign = fmt.Sprintf("volume %s of plugin %s is a file system that the host has mounted, and a VM cannot share "+
			"it: use an emptyDir or a claim with volumeMode Block, or set annotation %svolumes=copy on the pod to give each "+
			"container a copy",
			filepath.Base(dir), strings.Replace(plugin, "~", "/", 1), Prefix)
	}
	return v, nil
}

// readEmptyDir tells apart the media of an emptyDir: the host's disk, memory, huge pages.
func (v *found) readEmptyDir() error {
	size, memory, err := tmpfsSize(v.Source)
	if err != nil {
		return err
	}
	mounted, err := mount.Lookup(v.Source)
	if err != nil {
		return fmt.Errorf("find mount of %s: %w", v.Source, err)
	}
	switch own := mounted.Mountpoint == v.Source; {
	case own && mounted.FSType == "hugetlbfs":
		v.foreign = fmt.Sprintf("emptyDir %s is of huge pages, and a VM has none of the host's: use medium Memory",
			filepath.Base(v.Source))
	case own && memory:
		v.Kind, v.Size = spec.VolumeMemory, size
	default:
		v.Kind = spec.VolumeDisk
	}
	return nil
}

// tmpfsSize is the size of the tmpfs that a directory lies in, if it is one.
func tmpfsSize(dir string) (size uint64, memory bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Blocks * uint64(st.Bsize), st.Type == unix.TMPFS_MAGIC, nil
}

// findSubPath answers which volume of that name holds what is mounted at source: the same file system has
// it, below the volume's root. None: the kubelet took it from a directory of the host.
func findSubPath(source, pod, name string) (v *found, below string, err error) {
	plugins, err := os.ReadDir(filepath.Join(pod, "volumes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	for _, plugin := range plugins {
		dir := filepath.Join(pod, "volumes", plugin.Name(), name)
		below, is, err := belowVolume(source, dir)
		if err != nil {
			return nil, "", err
		}
		if !is {
			continue
		}
		if direct, err := readDirect(dir, filepath.Join(dir, csiMount)); direct != nil || err != nil {
			return nil, "", errors.Join(refused("subPath", "the node has not mounted volume "+name+", which the VM mounts as a "+
				"whole: leave it out"), err)
		}
		v, err := readVolume(dir, plugin.Name())
		if v != nil && v.Kind == spec.VolumeSynced {
			below = withoutVersion(below)
		}
		return v, below, err
	}
	return nil, "", nil
}

// belowVolume compares where source and the volume lie in their file systems.
func belowVolume(source, dir string) (below string, is bool, err error) {
	part, err := locate(source)
	if err != nil {
		return "", false, err
	}
	// CSI mounts its volume one directory further down.
	for _, root := range []string{dir, filepath.Join(dir, csiMount)} {
		whole, err := locate(root)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", false, err
		}
		below, err := filepath.Rel(whole.path, part.path)
		if whole.device == part.device && err == nil && filepath.IsLocal(below) {
			if below == "." {
				below = ""
			}
			return below, true, nil
		}
	}
	return "", false, nil
}

// place is where a file lies in its file system, whatever is mounted where.
type place struct {
	device [2]int
	path   string
}

func locate(name string) (p place, err error) {
	if _, err := os.Lstat(name); err != nil {
		return p, err
	}
	m, err := mount.Lookup(name)
	if err != nil {
		return p, fmt.Errorf("find mount of %s: %w", name, err)
	}
	rest, err := filepath.Rel(m.Mountpoint, name)
	if err != nil {
		return p, err
	}
	root := strings.TrimSuffix(m.Root, "//deleted")
	return place{[2]int{m.Major, m.Minor}, filepath.Join(root, rest)}, nil
}

// withoutVersion takes away the directory with the date that a kubelet keeps each version of its files in: the
// links at the top of the volume lead there.
func withoutVersion(below string) string {
	if first, rest, more := strings.Cut(below, "/"); more && strings.HasPrefix(first, "..") {
		return rest
	}
	return below
}
