package bundle

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/guest/stage"
)

// guestTypes are made by the guest's own kernel.
var guestTypes = []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}

// hostViews are what the host's kernel tells about itself; a copy of it means nothing.
var hostViews = []string{"/proc", "/sys", "/dev"}

// readMounts leaves in oci the mounts that the guest makes and collects the bind
// mounts as copies.
func (b *Bundle) readMounts(oci *specs.Spec, copyVolumes bool) error {
	var kept []specs.Mount
	for _, m := range oci.Mounts {
		if !path.IsAbs(m.Destination) {
			return fmt.Errorf("mounts: destination %q is not an absolute path: %w", m.Destination, errdefs.ErrInvalidArgument)
		}
		m.Options = stage.PlainOptions(m.Options)
		m, ids, err := takeMapping(m, spec.UsersOf(oci))
		if err != nil {
			return err
		}
		if err := refuseMount(m); err != nil {
			return err
		}
		if !isBind(m) {
			kept = append(kept, m)
			continue
		}
		c, err := readCopy(m, copyVolumes)
		if err != nil {
			return err
		}
		c.Mapped = ids
		b.Copies = append(b.Copies, c)
		if !c.ReadOnly {
			b.addNote("mount %s is a copy: what the container writes there stays in the VM", c.Destination)
		}
	}
	oci.Mounts = kept
	var err error
	b.copied, err = b.Copies.measure(kept)
	return err
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

func refuseMount(m specs.Mount) error {
	field := "mount " + m.Destination
	if slices.Contains(m.Options, "tmpcopyup") {
		return refused(field, "option tmpcopyup is not known in the guest")
	}
	if isBind(m) {
		return nil // readCopy looks at its options
	}
	if !slices.Contains(guestTypes, m.Type) {
		return refused(field, fmt.Sprintf("type %q is not made in the guest, which knows %s and copies of bind mounts",
			m.Type, strings.Join(guestTypes, ", ")))
	}
	return stage.CheckMount(stage.Mount{Type: m.Type, Source: m.Source, Target: m.Destination, Options: m.Options})
}

func readCopy(m specs.Mount, copyVolumes bool) (Copy, error) {
	c := Copy{Source: m.Source, Destination: path.Clean(m.Destination)}
	field := "mount " + m.Destination
	var err error
	if c.Options, c.ReadOnly, err = stage.CopyOptions(m.Destination, m.Options); err != nil {
		return c, err
	}
	source, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return c, fmt.Errorf("%s: %w: %w", field, err, errdefs.ErrNotFound)
	}
	for _, view := range hostViews {
		if source == view || strings.HasPrefix(source, view+"/") {
			return c, refused(field, fmt.Sprintf("%s belongs to the host's kernel; the guest has its own", m.Source))
		}
	}
	info, err := os.Stat(source)
	if err != nil {
		return c, fmt.Errorf("%s: %w", field, err)
	}
	switch {
	case info.Mode().IsRegular():
	case !info.IsDir():
		return c, refused(field, fmt.Sprintf("%s is neither a file nor a directory", m.Source))
	case !c.ReadOnly && !copyVolumes:
		return c, refused(field, fmt.Sprintf("a VM cannot write to directory %s of the host: mount it read-only, or set "+
			"annotation %svolumes=copy to give the VM a copy of its own", m.Source, Prefix))
	}
	c.Source = source
	return c, nil
}

// roomStep is a group of blocks of the writable disk's file system.
const roomStep = 128 << 20

// CopyRoom is how much larger than asked for the writable disk is made. So copies of bind mounts
// do not fill what the container may write. Some small files do not count.
func (b *Bundle) CopyRoom() int64 {
	if b.copied < 1<<20 {
		return 0
	}
	return (b.copied + roomStep - 1) / roomStep * roomStep
}

// FitCopies refuses bind mounts that cannot fit a writable disk of that size, before
// the guest finds out.
func (b *Bundle) FitCopies(disk int64) error {
	if b.copied == 0 || b.copied < disk {
		return nil
	}
	return fmt.Errorf("bind mounts of %d MiB are copied to the VM's writable disk, which has %d MiB: put the data into "+
		"the image or make the disk larger: %w",
		b.copied>>20, disk>>20, errdefs.ErrResourceExhausted)
}
