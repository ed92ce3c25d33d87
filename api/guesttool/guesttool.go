// Package guesttool names the tools that the agent of a guest brings along. A tool runs as an exec
// of the container whose command is Command: in the container's mounts and pid namespace, as root,
// whatever the image has. It reads and writes its standard streams. Its last line on standard
// error is a Report.
//
// A guest of an earlier build has no tools: there the exec fails, as there is no such file.
package guesttool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/archive"
)

// Command is args[0] of a tool's process. No image can have such a file.
const Command = "/proc/godwit-tool"

// ExecPrefix begins the exec id of a tool. Such an exec does not go along with a VM that sleeps or
// moves: who asked for it is not there.
const ExecPrefix = "godwit-tool-"

// The tools, as args[1], and their further arguments.
const (
	Stat   = "stat"   // PATH: writes a FileInfo
	Pack   = "pack"   // PATH AS: writes a tar stream of PATH, which is called AS in it
	Unpack = "unpack" // DIR NAME OWNERS: reads a tar stream of NAME into DIR; OWNERS is keep, or empty
	Top    = "top"    // writes []Process
	User   = "user"   // USER[:GROUP], names or numbers: writes an Identity
)

// KeepOwners is the argument OWNERS of a copy that keeps owners.
const KeepOwners = "keep"

// FileInfo is what a path of the guest is.
type FileInfo = archive.Info

// Process is one process of the container. Its ids are those of the container's pid namespace.
type Process struct {
	PID     int    `json:"pid"`
	Parent  int    `json:"parent"`
	User    string `json:"user"` // name, or number where the guest knows none
	UID     int    `json:"uid"`
	State   string `json:"state"`   // one letter, as in proc(5)
	Memory  uint64 `json:"memory"`  // resident, bytes
	CPU     int64  `json:"cpuMs"`   // user and system time since the start, milliseconds
	Started int64  `json:"started"` // Unix time, seconds
	Command string `json:"command"` // arguments, separated by spaces
}

// Age is how long the process runs.
func (p *Process) Age(now time.Time) time.Duration { return now.Sub(time.Unix(p.Started, 0)) }

// Identity is a user, as the guest's own files say.
type Identity struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Report is how a tool has ended.
type Report struct {
	Class  string          `json:"class,omitempty"` // of an error
	Error  string          `json:"error,omitempty"`
	Result *archive.Result `json:"result,omitempty"` // of pack and unpack
}

var classes = map[string]error{
	"notfound": errdefs.ErrNotFound, "denied": errdefs.ErrPermissionDenied, "invalid": errdefs.ErrInvalidArgument,
	"precondition": errdefs.ErrFailedPrecondition, "exhausted": errdefs.ErrResourceExhausted,
	"aborted": errdefs.ErrAborted, "unavailable": errdefs.ErrUnavailable,
}

// Failed is the report of err.
func Failed(err error) *Report {
	r := &Report{Error: err.Error()}
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.Class = "notfound"
	case errors.Is(err, os.ErrPermission):
		r.Class = "denied"
	}
	for name, class := range classes {
		if errors.Is(err, class) {
			r.Class = name
		}
	}
	return r
}

// Err is the error that the report tells, nil for none.
func (r *Report) Err() error {
	if r.Error == "" {
		return nil
	}
	if class := classes[r.Class]; class != nil {
		return fmt.Errorf("%s: %w", strings.TrimSuffix(r.Error, ": "+class.Error()), class)
	}
	return errors.New(r.Error)
}

// ReadReport finds the report in what a tool wrote on standard error; false: it wrote none.
func ReadReport(stderr string) (*Report, bool) {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	r := new(Report)
	return r, json.Unmarshal([]byte(lines[len(lines)-1]), r) == nil
}
