package agentd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"
	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// volume is a directory that containers share. They see its directory data. What is on its way
// into it is next to that, on the same file system.
type volume struct {
	id      string
	content []byte // of the request that made it
	mode    uint32
	dir     string
	root    rootfs // of a tmpfs or a disk
	disk    *agentv1.Disk

	mu       sync.Mutex // serialises what changes the volume
	made     bool
	revision uint64 // of SyncVolume
	pending  *pending

	leaving bool // RemoveVolume has begun; the service's mu guards it
}

func (v *volume) data() string { return filepath.Join(v.dir, "data") }

// AddVolume implements agentv1.AgentService.
func (s *Service) AddVolume(ctx context.Context, r *agentv1.AddVolumeRequest) (*agentv1.AddVolumeResponse, error) {
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	v, err := s.registerVolume(r)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made {
		return &agentv1.AddVolumeResponse{}, nil
	}
	if err := v.make(ctx, r); err != nil {
		return nil, errors.Join(fmt.Errorf("add volume %s: %w", r.Id, err), v.unmake())
	}
	v.made = true
	return &agentv1.AddVolumeResponse{}, nil
}

// registerVolume finds a volume, or puts it into the list. One that could not be made stays there, so
// that the call can be repeated, also with another content.
func (s *Service) registerVolume(r *agentv1.AddVolumeRequest) (*volume, error) {
	if err := checkID("volume", r.Id); err != nil {
		return nil, err
	}
	p := s.pod.Load()
	if p == nil {
		return nil, fmt.Errorf("add volume %s: the guest has no pod: %w", r.Id, errdefs.ErrFailedPrecondition)
	}
	dir := map[string]string{"disk": p.dir, "memory": s.opts.Dir, kindMounted: s.opts.Dir}[r.Kind]
	if dir == "" || (r.Kind == kindMounted) != (r.Disk != nil) {
		return nil, fmt.Errorf("add volume %s: kind %q is not disk, memory or mounted, or disk is wrong for it: "+
			"%w", r.Id, r.Kind, errdefs.ErrInvalidArgument)
	}
	dir = filepath.Join(dir, "volumes", r.Id)
	fresh := &volume{
		id: r.Id, content: r.AppendTo(nil), mode: r.Mode & 0o7777, dir: dir, root: rootfs{dir: filepath.Dir(dir)},
		disk: r.Disk,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[r.Id]
	switch {
	case v == nil:
	case v.leaving:
		return nil, fmt.Errorf("add volume %s: it is being removed: %w", r.Id, errdefs.ErrFailedPrecondition)
	case !bytes.Equal(v.content, fresh.content):
		return nil, fmt.Errorf("add volume %s: it was added otherwise: %w", r.Id, errdefs.ErrFailedPrecondition)
	default:
		return v, nil
	}
	s.volumes[r.Id] = fresh
	return fresh, nil
}

func (v *volume) make(ctx context.Context, r *agentv1.AddVolumeRequest) error {
	if err := os.MkdirAll(v.dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if v.disk != nil {
		return v.mountDisk(ctx, r.Options)
	}
	if r.Kind == "memory" {
		options := "mode=755"
		if r.Size > 0 {
			options += fmt.Sprintf(",size=%d", r.Size)
		}
		if _, err := v.root.make(v.id, "tmpfs", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(v.data(), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := unix.Chown(v.data(), int(r.Uid), int(r.Gid)); err != nil {
		return fmt.Errorf("own directory: %w", err)
	}
	if err := unix.Chmod(v.data(), v.mode); err != nil {
		return fmt.Errorf("set mode of directory: %w", err)
	}
	return nil
}

// unmake may be repeated.
func (v *volume) unmake() error {
	v.made, v.pending = false, nil
	if err := v.root.unmount(); err != nil {
		return err
	}
	if v.disk != nil {
		return v.removeMountPoint()
	}
	if err := removeTree(v.dir); err != nil {
		return fmt.Errorf("remove volume %s: %w", v.id, err)
	}
	return nil
}

// RemoveVolume implements agentv1.AgentService.
func (s *Service) RemoveVolume(ctx context.Context, r *agentv1.RemoveVolumeRequest) (*agentv1.RemoveVolumeResponse,
	error) {
	v, err := s.leave(r.Id)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.unmake(); err != nil {
		return nil, err
	}
	if v.disk != nil {
		ctx, cancel := context.WithTimeout(ctx, endWait)
		defer cancel()
		if err := released(ctx, v.disk.Serial); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes, r.Id)
	return &agentv1.RemoveVolumeResponse{}, nil
}

// leave lets no container have a volume any more.
func (s *Service) leave(id string) (*volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[id]
	if v == nil {
		return nil, fmt.Errorf("remove volume %q: %w", id, errdefs.ErrNotFound)
	}
	for _, c := range s.containers {
		if slices.Contains(c.volumes, id) {
			return nil, fmt.Errorf("remove volume %s: container %s has it: %w", id, c.id, errdefs.ErrFailedPrecondition)
		}
	}
	v.leaving = true
	return v, nil
}

// volume finds one that was made.
func (s *Service) volume(id string) (*volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil && !v.leaving {
		return v, nil
	}
	return nil, fmt.Errorf("volume %q: %w", id, errdefs.ErrNotFound)
}

// withVolumes puts the mounts of volumes among the others: a mount that lies below a volume's target
// comes after it.
func (s *Service) withVolumes(mounts []stage.Mount, volumes []*agentv1.VolumeMount, u *users) ([]stage.Mount, error) {
	for _, m := range volumes {
		v, err := s.volume(m.Volume)
		if err != nil {
			return nil, err
		}
		path, err := v.subPath(m.Path, u)
		if err != nil {
			return nil, fmt.Errorf("volume %s: path %q: %w", m.Volume, m.Path, err)
		}
		made := stage.Mount{Type: "bind", From: v.data(), Source: path, Target: m.Target, Options: m.Options,
			Map: m.Map}
		if !slices.Contains(made.Options, "bind") && !slices.Contains(made.Options, "rbind") {
			made.Options = append([]string{"bind"}, made.Options...)
		}
		below := strings.TrimSuffix(filepath.Clean("/"+m.Target), "/") + "/"
		at := slices.IndexFunc(mounts, func(o stage.Mount) bool {
			return strings.HasPrefix(filepath.Clean("/"+o.Target), below)
		})
		if at < 0 {
			at = len(mounts)
		}
		mounts = slices.Insert(mounts, at, made)
	}
	return mounts, nil
}

// subPath sees to it that a path below the volume is there.
func (v *volume) subPath(path string, u *users) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.made {
		return "", fmt.Errorf("it was not made: %w", errdefs.ErrFailedPrecondition)
	}
	root, err := inroot.Open(v.data())
	if err != nil {
		return "", err
	}
	defer root.Close()
	u.own(root)
	path = filepath.Clean("/" + path)
	f, err := root.OpenFile(path, unix.O_PATH, 0)
	if err == nil {
		return path, f.Close()
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if f, err = root.MkdirAll(path); err != nil {
		return "", err
	}
	defer f.Close()
	return path, unix.Chmod(inroot.Path(f), v.mode)
}
