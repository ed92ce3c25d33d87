package stage

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

var propagation = map[string]uintptr{
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
	"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
	"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
}

// setFlags and clearFlags are the mount options that are flags.
var setFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC, "mand": unix.MS_MANDLOCK,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"strictatime": unix.MS_STRICTATIME, "silent": unix.MS_SILENT, "lazytime": unix.MS_LAZYTIME,
	"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "nosymfollow": unix.MS_NOSYMFOLLOW,
	"defaults": 0, "rw": 0,
}

var clearFlags = map[string]uintptr{
	"rw": unix.MS_RDONLY, "suid": unix.MS_NOSUID, "dev": unix.MS_NODEV, "exec": unix.MS_NOEXEC,
	"async": unix.MS_SYNCHRONOUS, "nomand": unix.MS_MANDLOCK, "atime": unix.MS_NOATIME,
	"diratime": unix.MS_NODIRATIME, "norelatime": unix.MS_RELATIME, "nostrictatime": unix.MS_STRICTATIME,
	"loud": unix.MS_SILENT, "nolazytime": unix.MS_LAZYTIME, "symfollow": unix.MS_NOSYMFOLLOW,
}

// MountOptions are the options that a config.json may have, besides those that a type of file system has of its own.
// A recursive one is in the list because nothing is mounted below a mount that PlainOptions is for.
func MountOptions() []string {
	known := slices.Concat(slices.Collect(maps.Keys(setFlags)), slices.Collect(maps.Keys(clearFlags)),
		slices.Collect(maps.Keys(propagation)), slices.Collect(maps.Keys(recursive)))
	slices.Sort(known)
	return slices.Compact(known)
}

// recursive are the options that act on the mounts below as well.
var recursive = map[string]bool{
	"rro": true, "rrw": true, "rnosuid": true, "rsuid": true, "rnodev": true, "rdev": true, "rnoexec": true,
	"rexec": true, "rnodiratime": true, "rdiratime": true, "rrelatime": true, "rnorelatime": true, "rnoatime": true,
	"ratime": true, "rstrictatime": true, "rnostrictatime": true, "rnosymfollow": true, "rsymfollow": true,
}

// options is what the option strings of a mount say.
type options struct {
	flags       uintptr
	propagation []string
	data        []string
}

func (m *Mount) options() (o options, err error) {
	for _, s := range m.Options {
		set, isSet := setFlags[s]
		clear, isClear := clearFlags[s]
		switch {
		case isSet || isClear:
			o.flags = o.flags&^clear | set
		case propagation[s] != 0:
			o.propagation = append(o.propagation, s)
		case s == "tmpcopyup" || s == "idmap" || s == "ridmap" || recursive[s]:
			return o, fmt.Errorf("mount %s: option %q in a guest: %w", m.Target, s, errdefs.ErrNotImplemented)
		default:
			o.data = append(o.data, s)
		}
	}
	return o, nil
}

// mountable are the types that can be made in a guest.
var mountable = []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bind", "none", ""}

// mount makes m below the container's root, writable whatever it is to become.
func (m *Mount) mount(c *Container) error {
	o, err := m.options()
	if err != nil {
		return err
	}
	if !slices.Contains(mountable, m.Type) {
		return fmt.Errorf("mount %s: type %q in a guest: %w", m.Target, m.Type, errdefs.ErrNotImplemented)
	}
	root, err := c.open()
	if err != nil {
		return err
	}
	defer root.Close()
	target, err := m.target(root, o)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	defer target.Close()
	path := inroot.Path(target)
	if o.flags&unix.MS_BIND != 0 {
		err = m.bind(root, path, o, c.users)
	} else {
		err = m.fresh(path, o, c.User)
	}
	if err == unix.EINVAL {
		return fmt.Errorf("mount %s: options %v: %w: %w", m.Target, m.Options, err, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	if len(o.propagation) == 0 {
		return nil
	}
	// The descriptor names what was there before: open the mount itself.
	made, err := root.OpenFile(m.Target, unix.O_PATH, 0)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	defer made.Close()
	for _, p := range o.propagation {
		if err := propagate(inroot.Path(made), p); err != nil {
			return err
		}
	}
	return nil
}

// fresh mounts a file system that is none yet.
func (m *Mount) fresh(path string, o options, user *User) error {
	kind := m.Type
	if kind == "cgroup" {
		kind, o.data = "cgroup2", nil
	}
	data, err := user.options(m.Target, kind, o.data)
	if err != nil {
		return err
	}
	return unix.Mount(m.Source, path, kind, o.flags&^unix.MS_RDONLY, strings.Join(data, ","))
}

// source opens what a bind mount shows.
func (m *Mount) source(root *inroot.Root) (*os.File, error) {
	if m.From == "" {
		return root.OpenFile(m.Source, unix.O_PATH, 0)
	}
	other, err := inroot.Open(m.From)
	if err != nil {
		return nil, err
	}
	defer other.Close()
	return other.OpenFile(m.Source, unix.O_PATH, 0)
}

// target opens the mount point, made if need be.
func (m *Mount) target(root *inroot.Root, o options) (*os.File, error) {
	if o.flags&unix.MS_BIND == 0 {
		return root.MkdirAll(m.Target)
	}
	source, err := m.source(root)
	if err != nil {
		return nil, fmt.Errorf("bind source: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer source.Close()
	if fi, err := source.Stat(); err != nil || fi.IsDir() {
		return root.MkdirAll(m.Target)
	}
	return root.Touch(m.Target)
}

// bind mounts a path of the root file system, or of a volume, elsewhere.
func (m *Mount) bind(root *inroot.Root, target string, o options, users int) error {
	source, err := m.source(root)
	if err != nil {
		return err
	}
	defer source.Close()
	if m.Map {
		err = MapMount(inroot.Path(source), target, users)
	} else {
		err = unix.Mount(inroot.Path(source), target, "", unix.MS_BIND|o.flags&unix.MS_REC, "")
	}
	if err != nil {
		return err
	}
	extra := o.flags &^ (unix.MS_BIND | unix.MS_REC | unix.MS_RDONLY)
	if extra == 0 {
		return nil
	}
	made, err := root.OpenFile(m.Target, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer made.Close()
	return unix.Mount("", inroot.Path(made), "", unix.MS_BIND|unix.MS_REMOUNT|extra, "")
}

// remount makes a path that was copied in a mount with options of its own.
func (m *Mount) remount() error {
	o, err := m.options()
	if err != nil {
		return err
	}
	if len(o.data) > 0 {
		return fmt.Errorf("mount %s: unknown options %v: %w", m.Target, o.data, errdefs.ErrInvalidArgument)
	}
	path := filepath.Clean(m.Target)
	if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	if flags := o.flags &^ (unix.MS_BIND | unix.MS_REC); flags != 0 {
		if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
			return fmt.Errorf("mount %s: options %v: %w", m.Target, m.Options, err)
		}
	}
	for _, p := range o.propagation {
		if err := propagate(path, p); err != nil {
			return err
		}
	}
	return nil
}

// seal makes a mount read-only that is to be. It runs inside the new root.
func (m *Mount) seal() error {
	o, err := m.options()
	if err != nil || o.flags&unix.MS_RDONLY == 0 {
		return err
	}
	return remountReadOnly(filepath.Clean(m.Target))
}
