// Package proc names processes so that a reused pid is never taken for them, and ends
// them.
package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/process"
)

// ID of a process: its pid, its start time since the boot of the host in clock ticks, and
// that boot. Builds before noted no boot: Settle.
type ID struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"`
	Boot      string `json:"boot,omitempty"`
}

// ErrUnknown says that it cannot be told now whether a process lives. Such an error is
// Unavailable too: to ask again may help.
var ErrUnknown = errors.New("whether it lives is not known")

// errNoBoot is in the ErrUnknown of an ID without a boot whose pid and start time a process has.
var errNoBoot = errors.New("an earlier build wrote it down without the boot of its host: look whether the process " +
	"is the VM's")

func unknown(pid int, err error) error {
	return fmt.Errorf("process %d: %w: %w; free descriptors or memory of the host, and try again: %w", pid, ErrUnknown,
		err, errdefs.ErrUnavailable)
}

// Find names a process that runs now.
func Find(pid int) (ID, error) {
	boot, err := process.Boot()
	if err != nil {
		return ID{}, fmt.Errorf("find process %d: %w", pid, err)
	}
	now, err := stat(statFile(pid))
	if err != nil {
		return ID{}, fmt.Errorf("find process %d: %w", pid, err)
	}
	return ID{PID: pid, StartTime: now.start, Boot: boot}, nil
}

// Missing reports whether err, of Find or of a file below /proc/PID, says that there is no such
// process. An error that says that the process could not be looked at is not Missing.
func Missing(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// status of a process, or of one of its threads.
type status struct {
	start   uint64
	state   byte // its letter; of a process that of its first thread
	threads int  // of the process; a zombie whose threads have all ended has one
}

// ended reports whether nothing of a process may do anything any more.
func (s status) ended() bool { return s.state == 'X' || s.state == 'Z' && s.threads <= 1 }

func statFile(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid), "stat") }

func stat(path string) (status, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return status{}, err
	}
	// The command, in parentheses, may hold anything.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return status{}, fmt.Errorf("%s: short line", path)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return status{}, err
	}
	threads, err := strconv.Atoi(fields[17])
	return status{start, fields[0][0], threads}, err
}

// inspect answers what the process is doing; os.ErrProcessDone: it is proved that it is gone, its pid
// may be another's; ErrUnknown: it may be there or not.
func (id ID) inspect() (status, error) {
	if id.PID <= 0 {
		return status{}, os.ErrProcessDone
	}
	now, err := stat(statFile(id.PID))
	if err != nil {
		// The kernel itself, which needs no descriptor, is asked: a file may be missing where /proc
		// hides processes too.
		if unix.Kill(id.PID, 0) == unix.ESRCH {
			return status{}, os.ErrProcessDone
		}
		return status{}, unknown(id.PID, err)
	}
	if now.start != id.StartTime {
		return status{}, os.ErrProcessDone
	}
	if id.Boot == "" {
		return now, unknown(id.PID, errNoBoot)
	}
	boot, err := process.Boot()
	if err != nil {
		return now, unknown(id.PID, err)
	}
	if boot != id.Boot {
		return status{}, os.ErrProcessDone
	}
	return now, nil
}

// Alive reports whether the process exists and any of its threads may still do something: the
// first one is a zombie from its end on, while another one waits for a disk, say. False without
// an error is proved; ErrUnknown is neither.
func (id ID) Alive() (bool, error) {
	now, err := id.inspect()
	if errors.Is(err, os.ErrProcessDone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return !now.ended(), nil
}

// another is the boot of an ID whose process turned out to be none of today's.
const another = "another"

// WithBoot answers the ID with the boot that it lacks. It asks ours whether the process with its
// pid and start time is the one that was meant. If so, the boot is today's; if not, it is
// another one. An ID that has a boot stays, and so does one of which ours does not know.
func (id ID) WithBoot(ours func(pid int) (bool, error)) ID {
	if _, err := id.inspect(); !errors.Is(err, errNoBoot) {
		return id
	}
	boot, err := process.Boot()
	if err != nil {
		return id
	}
	switch yes, err := ours(id.PID); {
	case err != nil:
	case yes:
		id.Boot = boot
	default:
		id.Boot = another
	}
	return id
}
