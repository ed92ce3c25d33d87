package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/vmm"
)

// A journal of an earlier build names its processes without the boot of the host. Where a process
// has such a pid and start time now, it is asked who it is: after a restart of the host it may be any.

// shimOf is the shim that has the VM, or had it.
func shimOf(j *journal.Journal) proc.ID {
	return j.Shim.WithBoot(func(pid int) (bool, error) { return servesVM(j, pid) })
}

// sandboxOf is the process whose pid the task shows.
func sandboxOf(j *journal.Journal) proc.ID { return j.Holder.WithBoot(isSandboxProcess) }

// vmmOf is the VMM; none where none was started.
func vmmOf(j *journal.Journal) proc.ID {
	if j.Process == nil {
		return proc.ID{}
	}
	return idOf(j.Process).WithBoot(func(pid int) (bool, error) { return mapsRAM(j, pid) })
}

func idOf(p *vmm.Process) proc.ID {
	return proc.ID{PID: p.PID, StartTime: p.StartTime, Boot: p.Boot}
}

// ignoreEnded is err, which a call about a process has answered, unless the process is proved to be
// gone.
func ignoreEnded(id proc.ID, err error) error {
	if err == nil {
		return nil
	}
	alive, unknown := id.Alive()
	if !alive && unknown == nil {
		return nil
	}
	return errors.Join(err, unknown)
}

// servesVM reports whether a process is a shim of the VM: each is told the VM's name, also the one
// that containerd starts to clean up.
func servesVM(j *journal.Journal, pid int) (bool, error) {
	args, err := arguments(pid)
	if err != nil {
		return false, err
	}
	id, named := flagOf(args, "id")
	switch {
	case !named:
		return false, nil
	case j.Spec == nil: // a fence, which does not say whose
		return false, fmt.Errorf("process %d is the shim of %s", pid, id)
	}
	namespace, _ := flagOf(args, "namespace")
	return id == j.Spec.ID && namespace == j.Spec.Namespace, nil
}

func flagOf(args []string, name string) (value string, ok bool) {
	at := slices.IndexFunc(args, func(a string) bool { return a == "-"+name || a == "--"+name })
	if at < 0 || at+1 == len(args) {
		return "", false
	}
	return args[at+1], true
}

// isSandboxProcess reports whether a process is a holder.
func isSandboxProcess(pid int) (bool, error) {
	args, err := arguments(pid)
	return len(args) > 1 && args[1] == sandboxprocess.Subcommand, err
}

func arguments(pid int) ([]string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if proc.Missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look who process %d is: %w", pid, err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

// mapsRAM reports whether a process has the VM's RAM mapped, which a VMM has from its start to its
// end.
func mapsRAM(j *journal.Journal, pid int) (bool, error) {
	if j.RAM == "" {
		return false, fmt.Errorf("process %d: the VM's RAM has no name", pid)
	}
	ram, err := resolvedPath(j.RAM)
	if err != nil {
		return false, fmt.Errorf("look who process %d is: %w", pid, err)
	}
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if proc.Missing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look who process %d is: %w", pid, err)
	}
	for line := range bytes.Lines(data) {
		// address perms offset dev inode path: proc_pid_maps(5). The path may have blanks.
		path := strings.TrimSuffix(strings.TrimSpace(string(line)), " (deleted)")
		if strings.HasSuffix(path, " "+j.RAM) || strings.HasSuffix(path, " "+ram) {
			return true, nil
		}
	}
	return false, nil
}

// resolvedPath is a path as the kernel lists it, in which no directory is a link. The file may be gone,
// and the directory too.
func resolvedPath(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return path, nil
	}
	return filepath.Join(dir, filepath.Base(path)), err
}
