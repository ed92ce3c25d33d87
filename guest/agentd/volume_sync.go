package agentd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// pending is a revision of a volume of which not all messages have come.
type pending struct {
	revision uint64
	parts    uint32        // that have come
	top      *agentv1.File // the volume's own directory, if it was named
	names    tree          // of the whole revision, once it was begun to be put into its place
}

// SyncVolume implements agentv1.AgentService.
func (s *Service) SyncVolume(_ context.Context, r *agentv1.SyncVolumeRequest) (*agentv1.SyncVolumeResponse, error) {
	if err := refuseUnknown(r); err != nil {
		return nil, err
	}
	if r.Revision == 0 {
		return nil, fmt.Errorf("change volume %s: revision 0: %w", r.Volume, errdefs.ErrInvalidArgument)
	}
	v, err := s.volume(r.Volume)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.made {
		return nil, fmt.Errorf("change volume %s: it was not made: %w", r.Volume, errdefs.ErrNotFound)
	}
	if r.Revision > v.revision {
		if err := v.receive(r); err != nil {
			return nil, fmt.Errorf("change volume %s: %w", r.Volume, err)
		}
	}
	return &agentv1.SyncVolumeResponse{Revision: v.revision}, nil
}

// incoming is where a revision is put together.
func (v *volume) incoming() string { return filepath.Join(v.dir, "new") }

// receive writes the entries of a message next to the volume, and puts the revision into its place
// if it is whole.
func (v *volume) receive(r *agentv1.SyncVolumeRequest) error {
	if v.pending == nil || v.pending.revision != r.Revision {
		if v.pending != nil && v.pending.revision > r.Revision {
			return fmt.Errorf("revision %d comes after %d: %w", r.Revision, v.pending.revision, errdefs.ErrFailedPrecondition)
		}
		if err := os.RemoveAll(v.incoming()); err != nil {
			return err
		}
		if err := os.Mkdir(v.incoming(), 0o755); err != nil {
			return err
		}
		v.pending = &pending{revision: r.Revision}
	}
	if r.Part > v.pending.parts {
		return fmt.Errorf("revision %d: message %d came after %d: send the revision again: %w", r.Revision, r.Part,
			v.pending.parts, errdefs.ErrFailedPrecondition)
	}
	if err := v.write(r.Entries); err != nil {
		return err
	}
	v.pending.parts = max(v.pending.parts, r.Part+1)
	if !r.Last {
		return nil
	}
	if err := v.publish(); err != nil {
		return err
	}
	v.revision, v.pending = r.Revision, nil
	return os.RemoveAll(v.incoming())
}

func (v *volume) write(entries []*agentv1.File) error {
	root, err := inroot.Open(v.incoming())
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range entries {
		if filepath.Clean("/"+f.Path) == "/" {
			v.pending.top = f
			continue
		}
		plain := *f
		plain.Keep = false
		if _, err := copyFile(root, &plain); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

// publish makes the volume hold the revision. One that failed half-way goes on where it was when the
// last message is repeated.
func (v *volume) publish() error {
	from, err := openDir(unix.AT_FDCWD, v.incoming())
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openDir(unix.AT_FDCWD, v.data())
	if err != nil {
		return err
	}
	defer to.Close()
	names, err := namesOf(from)
	if err != nil {
		return err
	}
	names = union(names, v.pending.names)
	v.pending.names = names
	if err := place(from, to, names); err != nil {
		return err
	}
	if err := prune(to, names); err != nil {
		return err
	}
	if v.pending.top == nil {
		return nil
	}
	return setAttributes(v.data(), v.pending.top)
}
