package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Setup implements agentv1.AgentService.
func (s *Service) Setup(_ context.Context, r *agentv1.SetupRequest) (*agentv1.SetupResponse, error) {
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	if s.setup != nil {
		if bytes.Equal(s.setup.AppendTo(nil), r.AppendTo(nil)) {
			return &agentv1.SetupResponse{}, nil
		}
		return nil, fmt.Errorf("set up container: it has been set up otherwise: %w", errdefs.ErrFailedPrecondition)
	}
	if _, err := parseResources(r.Resources); err != nil {
		return nil, err
	}
	if err := s.opts.Ready(); err != nil {
		return nil, err
	}
	if !s.held { // else it is
		if err := loopbackUp(); err != nil {
			return nil, err
		}
	}
	root := &rootfs{dir: s.opts.Dir}
	dir, err := root.mount(r)
	if err != nil {
		return nil, errors.Join(err, root.unmount())
	}
	s.rootfs = dir
	ch, err := s.makeContainer(describe(dir, r))
	if err == nil {
		if err = s.copyFiles(r.Files); err != nil {
			err = s.abandon(ch, s.init, err)
			s.init = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, root.unmount())
	}
	if f := r.Seccomp; f != nil {
		s.filter = &stage.Seccomp{Program: f.Program, Flags: f.Flags}
	}
	s.persona = r.Personality
	s.setup, s.waiting = r, ch
	return &agentv1.SetupResponse{}, nil
}

// refuseUnknown keeps a guest that is older than the shim from running a container
// with less than was asked for.
func refuseUnknown(r interface{ Unknown() bool }) error {
	if !r.Unknown() {
		return nil
	}
	name := strings.TrimPrefix(fmt.Sprintf("%T", r), "*lean.")
	return fmt.Errorf("%s asks for what this guest does not know: its initramfs is older than the shim: %w", name,
		errdefs.ErrNotImplemented)
}

func describe(dir string, r *agentv1.SetupRequest) *stage.Container {
	c := &stage.Container{
		Root: dir, Hostname: r.Hostname, Sysctl: r.Sysctl, Masked: r.MaskedPaths, ReadOnly: r.ReadOnlyPaths,
		ReadOnlyRoot: r.ReadOnlyRoot, Propagation: r.RootfsPropagation,
	}
	for _, m := range r.Mounts {
		c.Mounts = append(c.Mounts, stage.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	for _, m := range r.Copies {
		c.Copies = append(c.Copies, stage.Mount{Target: m.Target, Options: m.Options})
	}
	return c
}

// Copy implements agentv1.AgentService.
func (s *Service) Copy(_ context.Context, r *agentv1.CopyRequest) (*agentv1.CopyResponse, error) {
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	if s.setup == nil || s.waiting == nil {
		return nil, fmt.Errorf("copy files: only between Setup and the first Start: %w", errdefs.ErrFailedPrecondition)
	}
	return &agentv1.CopyResponse{}, s.copyFiles(r.Files)
}

// rootfs is the container's root file system and the mounts below it.
type rootfs struct {
	dir    string
	mounts []string
}

// mount joins the disks and returns the directory of the result.
func (f *rootfs) mount(r *agentv1.SetupRequest) (string, error) {
	var lowers []string
	for i, d := range r.Layers {
		target, err := f.disk(fmt.Sprintf("layer%d", i), d)
		if err != nil {
			return "", err
		}
		lowers = append(lowers, target)
	}
	var rw string
	var err error
	if r.Writable != nil {
		rw, err = f.disk("rw", r.Writable)
	} else {
		rw, err = f.make("rw", "tmpfs", "tmpfs", 0, "mode=755")
	}
	if err != nil {
		return "", err
	}
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(rw, name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("make %s: %w", name, err)
		}
	}
	if len(lowers) == 0 {
		return filepath.Join(rw, "upper"), nil
	}
	// Relative names: the option string of mount(2) is one page.
	if err := os.Chdir(f.dir); err != nil {
		return "", fmt.Errorf("mount root: %w", err)
	}
	defer func() { _ = os.Chdir("/") }()
	for i := range lowers {
		lowers[i] = filepath.Base(lowers[i])
	}
	return f.make("rootfs", "overlay", "overlay", 0,
		"lowerdir="+strings.Join(lowers, ":")+",upperdir=rw/upper,workdir=rw/work,index=off,xino=off")
}

// disk mounts the file system of a disk.
func (f *rootfs) disk(name string, d *agentv1.Disk) (string, error) {
	device, err := findDisk(d.Serial)
	if err != nil {
		return "", err
	}
	switch d.Type {
	case "erofs", "ext4", "squashfs", "xfs":
	default:
		return "", fmt.Errorf("disk %s: file system %q in a guest: %w", d.Serial, d.Type, errdefs.ErrNotImplemented)
	}
	var flags uintptr
	if d.ReadOnly || d.Type == "erofs" {
		flags = unix.MS_RDONLY
	}
	return f.make(name, device, d.Type, flags, "")
}

func (f *rootfs) make(name, source, kind string, flags uintptr, data string) (string, error) {
	target := filepath.Join(f.dir, name)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return "", fmt.Errorf("mount %s %s on %s: %w", kind, source, target, err)
	}
	f.mounts = append(f.mounts, target)
	return target, nil
}

// unmount undoes mount, in reverse.
func (f *rootfs) unmount() error {
	var errs []error
	for i := len(f.mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(f.mounts[i], unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", f.mounts[i], err))
		}
	}
	return errors.Join(errs...)
}

// findDisk returns the device of a serial number.
func findDisk(serial string) (string, error) {
	const block = "/sys/block"
	disks, err := os.ReadDir(block)
	if err != nil {
		return "", fmt.Errorf("look for disk with serial %q: %w", serial, err)
	}
	for _, d := range disks {
		data, err := os.ReadFile(filepath.Join(block, d.Name(), "serial"))
		if err == nil && strings.TrimSpace(string(data)) == serial && serial != "" {
			return "/dev/" + d.Name(), nil
		}
	}
	return "", fmt.Errorf("disk with serial %q: %w", serial, errdefs.ErrNotFound)
}
