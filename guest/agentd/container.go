package agentd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/guest/stage"
	"godwit.dev/godwit/internal/turn"

	"github.com/containerd/errdefs"
)

// container is one container of the guest, from Setup or AddContainer to RemoveContainer.
type container struct {
	id     string
	cgroup cgroup
	root   rootfs

	// turn serialises the calls that change the container: they take their time, and may wait for its file systems.
	turn    turn.Turn
	order   *order // nil before it is made
	filter  *stage.Seccomp
	kept    map[string]*os.File // by path: files for ReadBack
	waiting *child              // its init until it has its process
	init    *process            // nil before it is made
	refused error               // why the init could not be started
	shares  bool                // its pid namespace is not its own: others do not end with its init

	left *order // of an attempt to make it of which something is left

	// Guarded by the service's mu.
	leaving bool     // RemoveContainer has begun
	volumes []string // that it has
	disks   []string // serial numbers of those that it may have mounted
}

func newContainer(id string, group cgroup, dir string) *container {
	return &container{id: id, cgroup: group, root: rootfs{dir: dir}, turn: turn.New()}
}

// podID is the id of the process that holds what containers share.
const podID = "pod"

// maxID is long enough for any counter.
const maxID = 64

// checkID refuses what is no name of a directory, and what would be another process's.
func checkID(field, id string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	if id == "" || len(id) > maxID || strings.Trim(id, letters) != "" || id == podID {
		return fmt.Errorf("%s %q: at most %d letters, digits and '-', and not %q: %w", field, id, maxID, podID,
			errdefs.ErrInvalidArgument)
	}
	return nil
}

// container finds one of the pod, or the one whose id is empty.
func (s *Service) container(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
}

// group is the cgroup of a container, or, where no container is named in a pod, of all of them.
func (s *Service) group(id string) (cgroup, error) {
	if p := s.pod.Load(); p != nil && id == "" {
		return p.cgroup, nil
	}
	c, err := s.container(id)
	if err != nil {
		return "", err
	}
	return c.cgroup, nil
}

// owner finds the container of a Start.
func (s *Service) owner(id, name string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" && s.containers[id] != nil { // the id of an init says it
		name = id
	}
	c := s.containers[name]
	if c == nil || c.leaving || name == "" && s.pod.Load() != nil {
		return nil, fmt.Errorf("start process %q: there is no container %q: %w", id, name, errdefs.ErrFailedPrecondition)
	}
	if other := s.containers[id]; other != nil && other != c {
		return nil, fmt.Errorf("start process %q in container %q: it is the id of another container: %w", id, name,
			errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// mountDir is where a container of the pod has its mount points.
func (s *Service) mountDir(id string) string { return filepath.Join(s.opts.Dir, "c", id) }
