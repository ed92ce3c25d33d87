package cloudhypervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/process"
)

// The VMM has one directory of its own, in that of the VM: where it binds its socket, writes its state and reads what
// it is to restore. It gets it as a descriptor, so that it needs no rights on the way there. What lies in it may be
// anything, should the VMM be broken into, and is never followed. The descriptor is of a mount of its own, beyond whose
// root no name leads.
func workDir(dir string) string { return filepath.Join(dir, "vmm") }

func makeWork(dir string, u process.User) (*os.File, error) {
	path := workDir(dir)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return f, nil
	}
	defer f.Close()
	if err := f.Chown(u.ID, u.ID); err != nil {
		return nil, err
	}
	return process.Detached(f)
}

// workPaths is where the VMM's files lie, and how it names that place itself. A VMM of an older
// build of ours has the VM's directory.
func (m *Machine) workPaths() (here, there string) {
	p := m.Process()
	if p.Work == "" {
		return p.Dir, p.Dir
	}
	return workDir(p.Dir), p.Work
}

// Names of the sockets that the VMM binds. They are moved to where they are looked for: no process connects to what the
// VMM can replace.
const (
	agentSocket  = "agent.sock"
	serialSocket = "serial.sock"
)

// publish may be called again: a VM that is reset binds anew.
func (m *Machine) publish() error {
	p := m.Process()
	if p.Work == "" {
		return nil
	}
	var errs []error
	for name, to := range map[string]string{agentSocket: p.Agent, serialSocket: p.Serial} {
		if to == "" {
			continue
		}
		err := os.Rename(filepath.Join(workDir(p.Dir), name), to)
		if errors.Is(err, os.ErrNotExist) {
			continue // moved before, or it never came to be
		}
		if info, statErr := os.Lstat(to); err == nil && (statErr != nil || info.Mode().Type() != os.ModeSocket) {
			err = errors.Join(fmt.Errorf("%s is no socket: %w", to, errdefs.ErrDataLoss), statErr, os.Remove(to))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Files that a save and a restore use for a moment.
const (
	stateFile  = "state.json"
	configFile = "config.json"
	ramFile    = "memory-ranges"
)

func clearScratch(dir string) error {
	return process.RemoveSockets(filepath.Join(dir, stateFile), filepath.Join(dir, configFile),
		filepath.Join(dir, ramFile))
}

// writeInput writes a file that the VMM reads.
func writeInput(path string, data []byte, u process.User) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if u.ID != 0 {
		err = errors.Join(err, f.Chown(u.ID, u.ID))
	}
	return errors.Join(err, f.Close())
}

// take reads a file that the VMM has written.
func take(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxState {
		return nil, fmt.Errorf("%s is no file of at most %d bytes: %w", path, maxState, errdefs.ErrDataLoss)
	}
	return io.ReadAll(io.LimitReader(f, maxState))
}
