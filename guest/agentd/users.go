package agentd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"
	"godwit.dev/godwit/guest/stage/inroot"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// users is a user namespace of containers. It lives as long as the guest.
type users struct {
	stage.User
	file *os.File
}

// user is nil for the guest's own.
func (u *users) user() *stage.User {
	if u == nil {
		return nil
	}
	return &u.User
}

// with adds the descriptor of the user namespace, if it is not the guest's own.
func (u *users) with(fds []int) []int {
	if u == nil {
		return fds
	}
	return append(fds[:len(fds):len(fds)], int(u.file.Fd()))
}

// own makes directories that are made in root those of the container's root.
func (u *users) own(root *inroot.Root) {
	if u != nil {
		root.Own(u.Root())
	}
}

// usersOf answers the user namespace that a request asks for. Requests with the same ids get the same one.
func (s *Service) usersOf(r *agentv1.UserNamespace) (*users, error) {
	if r == nil {
		return nil, nil
	}
	key := string(r.AppendTo(nil))
	s.usersMu.Lock()
	defer s.usersMu.Unlock()
	if u := s.users[key]; u != nil {
		return u, nil
	}
	u := &users{User: stage.User{UIDs: mappings(r.Uids), GIDs: mappings(r.Gids)}}
	if len(u.UIDs) == 0 || len(u.GIDs) == 0 {
		return nil, fmt.Errorf("make user namespace: it maps no users or no groups: %w", errdefs.ErrInvalidArgument)
	}
	var err error
	if u.file, err = s.children.userNamespace(&u.User); err != nil {
		return nil, err
	}
	if err := openNetwork(); err != nil {
		return nil, err
	}
	s.users[key] = u
	return u, nil
}

// networkDefaults are what the guest's kernel lets its own root alone do, and what it is to let each user do. The
// network is the container's, but it does not belong to the user namespace.
var networkDefaults = []struct{ key, before, after string }{
	{"net/ipv4/ip_unprivileged_port_start", "1024", "0"},
	{"net/ipv4/ping_group_range", "1\t0", "0\t2147483647"},
}

// openNetwork leaves a value as it is that was set otherwise.
func openNetwork() error {
	for _, d := range networkDefaults {
		path := "/proc/sys/" + d.key
		data, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(data)) == d.before {
			err = os.WriteFile(path, []byte(d.after), 0)
		}
		if err != nil {
			return fmt.Errorf("open network to the user namespace: %w", err)
		}
	}
	return nil
}

func mappings(list []*agentv1.IDMapping) (maps []stage.IDMapping) {
	for _, m := range list {
		maps = append(maps, stage.IDMapping{Container: m.Container, Guest: m.Guest, Size: m.Size})
	}
	return maps
}

func lines(maps []stage.IDMapping) (all []syscall.SysProcIDMap) {
	for _, m := range maps {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(m.Container), HostID: int(m.Guest), Size: int(m.Size)})
	}
	return all
}

// userNamespace makes one. It takes a process, which is ended at its exec: it executes nothing.
func (c *children) userNamespace(u *stage.User) (file *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it traces; it ends with the goroutine
		file, err = c.userNamespaceHere(u)
	}()
	<-done
	return file, err
}

func (c *children) userNamespaceHere(u *stage.User) (*os.File, error) {
	ended := make(chan struct{})
	c.mu.Lock()
	pid, err := syscall.ForkExec(self, []string{"godwit-init"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: lines(u.UIDs), GidMappings: lines(u.GIDs),
		GidMappingsEnableSetgroups: true, Ptrace: true,
	}})
	if err == nil {
		c.runs[pid] = &spawned{pid: pid, ended: func(uint32, time.Time) { close(ended) }}
	}
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if kill := unix.Kill(pid, unix.SIGKILL); kill != nil {
		err = errors.Join(err, kill)
	}
	<-ended
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return file, nil
}
