package rootfs

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
)

// What the shim does with mounts itself, so that containerd leaves them to it.
var (
	mountTypes      = []string{"erofs", "loop", "ext4"}
	mountTransforms = []string{"format", "mkdir", "mkfs"}
)

// AllowMounts is the value of the annotation containerd.io/runtime-allow-mounts of
// -info, which says to containerd before 2.4 what Capabilities says to later ones.
const AllowMounts = "erofs,loop,ext4,format/*,mkdir/*,mkfs/*"

// Capabilities is the extension of the answer to start.
func Capabilities() *types.MountCapabilities {
	return &types.MountCapabilities{Types: slices.Clone(mountTypes), Transforms: slices.Clone(mountTransforms)}
}

// plan is what a list of mounts comes to.
type plan struct {
	// dirs are directories in overlayfs form, topmost first: upper first if it has
	// content, then the chain.
	upper string
	dirs  []string
	// unique: dirs is one directory that may change, so that its image is not looked up.
	unique bool
	// own: the one mount is a snapshot that the container alone has, and may write.
	own bool
	// mapped: the guest maps the ids of dirs, but not of upper.
	mapped bool
	// bound: a bind mount has named one of dirs, which may change in the same way.
	bound bool
	// files are images that are used as they are, topmost first.
	files        []image
	writable     string // empty: in the VM's directory
	writableSize int64  // 0: the config's
}

type image struct{ path, fsType string }

// entry is one mount with the transforms taken off its type.
type entry struct {
	transforms []string
	fsType     string
	source     string
	options    []string
}

func readPlan(mounts []*types.Mount) (*plan, error) {
	var entries []entry
	for i, m := range mounts {
		parts := strings.Split(m.Type, "/")
		e := entry{transforms: parts[:len(parts)-1], fsType: parts[len(parts)-1], source: m.Source, options: m.Options}
		for _, t := range e.transforms {
			if !slices.Contains(mountTransforms, t) {
				return nil, fmt.Errorf("mount %d of type %q: transform %q is not known; known are %s: %w", i, m.Type, t,
					strings.Join(mountTransforms, ", "), errdefs.ErrNotImplemented)
			}
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, invalid("the task has no root file system mount: run it with a snapshotter (overlayfs, erofs, native, " +
			"blockfile)")
	}
	last := entries[len(entries)-1]
	if last.fsType == "overlay" {
		return readOverlay(entries[:len(entries)-1], last)
	}
	if len(entries) > 1 {
		return readBound(entries[:len(entries)-1], last)
	}
	return readSingle(last)
}

// readBound takes a bind mount of one of the mounts before it, as a view of the erofs snapshotter is.
func readBound(before []entry, last entry) (*plan, error) {
	m := mountReference.FindStringSubmatch(last.source)
	if last.fsType != "bind" || m == nil || m[0] != last.source {
		return nil, invalid("%d mounts end with type %q of %q, and not with an overlay or a bind mount of them",
			len(before)+1, last.fsType, last.source)
	}
	i, err := strconv.Atoi(m[1])
	if err != nil || i >= len(before) {
		return nil, invalid("bind mount of %q names a mount that is not among the %d before it", last.source, len(before))
	}
	return readSingle(before[i])
}

// isBind reports whether an entry is a directory of the host.
func (e entry) isBind() bool {
	return e.fsType == "bind" || slices.Contains(e.options, "bind") || slices.Contains(e.options, "rbind")
}

// written reports whether an entry is an active snapshot: what containerd mounts to be written, where it has snapshots.
func (e entry) written() bool {
	return slices.Contains(e.options, "rw") && filepath.Base(filepath.Dir(e.source)) == "snapshots"
}

// directory is what a bind mount names.
func (e entry) directory() (string, error) {
	if !filepath.IsAbs(e.source) {
		return "", invalid("bind mount of %q: it is not an absolute path", e.source)
	}
	return e.source, nil
}

// readSingle takes a root file system that is one mount: a directory, or an image.
func readSingle(e entry) (*plan, error) {
	switch {
	case e.isBind():
		dir, err := e.directory()
		if err != nil {
			return nil, err
		}
		return &plan{dirs: []string{dir}, unique: true, own: e.written()}, nil
	case e.fsType == "erofs" || e.fsType == "ext4":
		img, err := readImage(e)
		if err != nil {
			return nil, err
		}
		return &plan{files: []image{img}, own: img.fsType == "ext4" && e.written()}, nil
	}
	return nil, fmt.Errorf("mount of type %q cannot become a disk of a VM: use the snapshotter overlayfs, erofs, "+
		"native or blockfile: %w", e.fsType, errdefs.ErrNotImplemented)
}

func readImage(e entry) (image, error) {
	if !filepath.IsAbs(e.source) {
		return image{}, invalid("%s image %q: it is not an absolute path", e.fsType, e.source)
	}
	for _, o := range e.options {
		if strings.HasPrefix(o, "device=") {
			return image{}, fmt.Errorf("erofs image %s has option %s: several devices of one file system are not joined in a "+
				"VM; set max_unmerged_layers = 0 in containerd's erofs snapshotter: %w", e.source, o, errdefs.ErrNotImplemented)
		}
	}
	return image{e.source, e.fsType}, nil
}

// readOverlay takes an overlay whose directories are on the host or in the mounts
// before it.
func readOverlay(before []entry, overlay entry) (*plan, error) {
	var upper string
	var lowers []string
	p := &plan{mapped: slices.ContainsFunc(overlay.options, isMapping)}
	for _, o := range overlay.options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "upperdir":
			upper = value
		case "lowerdir":
			var err error
			if lowers, err = lowerNames(value, len(before)); err != nil {
				return nil, err
			}
		case "workdir", "uidmap", "gidmap", "index", "ro", "rw", "xino", "volatile", "userxattr", "X-containerd.mkdir.path":
		default:
			return nil, fmt.Errorf("overlay option %q is not honoured in a VM: %w", o, errdefs.ErrNotImplemented)
		}
	}
	if slices.Contains(overlay.options, "userxattr") {
		return nil, fmt.Errorf("overlay option userxattr: its whiteouts mean nothing to the guest; run containerd as "+
			"root: %w", errdefs.ErrNotImplemented)
	}
	if len(lowers) == 0 {
		return nil, invalid("overlay without lowerdir")
	}
	for _, l := range lowers {
		i, ok := reference(l)
		if ok && before[i].isBind() {
			dir, err := before[i].directory()
			if err != nil {
				return nil, err
			}
			l, ok, p.bound = dir, false, true
		}
		if ok {
			img, err := readImage(before[i])
			if err != nil {
				return nil, err
			}
			if img.fsType != "erofs" && img.fsType != "ext4" {
				return nil, fmt.Errorf("mount %d of type %q is a layer: only erofs and ext4 images and bind mounts become disks: "+
					"%w", i, img.fsType, errdefs.ErrNotImplemented)
			}
			p.files = append(p.files, img)
			continue
		}
		if !filepath.IsAbs(l) {
			return nil, invalid("overlay lowerdir %q is not an absolute path", l)
		}
		p.dirs = append(p.dirs, l)
	}
	if len(p.files) > 0 && len(p.dirs) > 0 {
		return nil, invalid("overlay joins images and directories as lowerdir")
	}
	return p, p.readUpper(before, upper)
}

func isMapping(option string) bool { return strings.HasPrefix(option, "uidmap=") }

// readUpper decides where the writes go: to the image that upperdir lies in, or to a new one in
// the same directory.
func (p *plan) readUpper(before []entry, upper string) error {
	if upper == "" {
		return nil // a read-only view; the VM gets a disk of its own
	}
	m := mountReference.FindStringSubmatch(upper)
	if m == nil {
		if !filepath.IsAbs(upper) {
			return invalid("overlay upperdir %q is not an absolute path", upper)
		}
		p.upper, p.writable = upper, filepath.Join(filepath.Dir(upper), writableName)
		return nil
	}
	i, err := strconv.Atoi(m[1])
	if err != nil || i >= len(before) {
		return invalid("overlay upperdir %q names a mount that is not among the %d before it", upper, len(before))
	}
	rest := upper[len(m[0]):]
	if before[i].isBind() {
		dir, err := before[i].directory()
		if err != nil {
			return err
		}
		p.upper, p.writable = filepath.Join(dir, rest), filepath.Join(dir, filepath.Dir(rest), writableName)
		return nil
	}
	if rest != "/upper" {
		return fmt.Errorf("overlay upperdir %q: the guest expects /upper in the writable disk: %w", upper,
			errdefs.ErrNotImplemented)
	}
	img, err := readImage(before[i])
	if err != nil {
		return err
	}
	if img.fsType != "ext4" {
		return fmt.Errorf("mount %d of type %q is writable: only ext4 is: %w", i, img.fsType, errdefs.ErrNotImplemented)
	}
	p.writable = img.path
	p.writableSize, err = mkfsSize(before[i])
	return err
}
