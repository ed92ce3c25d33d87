// Package starts is the file in which the shims of a node note how long each start took,
// and from which its godwitd counts: a shim lives too short to be asked.
package starts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Observation is one start, or one wake. A restore counts as a restore, whatever the VM's
// Spec says about its first boot.
type Observation struct {
	// Wake is the result of a wake that a shim opened and settled by itself, and then the
	// only field that is set: godwitd has seen all others itself.
	Wake string `json:"wake,omitempty"`

	Mode    string  `json:"mode,omitempty"` // Boot, Clone or Restore
	Seconds float64 `json:"seconds"`
	Failed  bool    `json:"failed,omitempty"`
	// Address is set if the start had to wait for the guest to use its address.
	Address Address `json:"address,omitzero"`
}

// Results of a wake.
const (
	WakeOK     = "ok"
	WakeFailed = "failed"
	WakeLost   = "lost" // it may have run, and is gone
)

// Address says how a wait for a guest to use its address ended.
type Address struct {
	Result  string  `json:"result"` // one of those below; empty: there was no wait
	Seconds float64 `json:"seconds"`
}

// Results of a wait for an address.
const (
	AddressOK      = "ok"
	AddressTimeout = "timeout"
	AddressFailed  = "failed" // there was no NIC to wait for
)

// Modes of an Observation. Boot and Clone are how a fresh VM starts.
const (
	Boot    = "boot"
	Restore = "restore"
	Clone   = "clone" // a fresh VM, as a copy of a template
)

// maxSize of the file; then it makes room for a new one.
const maxSize = 1 << 20

// File of a node, below its state_dir.
func File(stateDir string) string { return filepath.Join(stateDir, "starts.jsonl") }

// Note appends one line, whole, also while others append.
func Note(path string, o Observation) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxSize {
		_ = os.Rename(path, path+".old") // the loser of a race finds nothing to move
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note start: %w", err)
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return errors.Join(fmt.Errorf("note start: %w", err), f.Close())
	}
	return f.Close()
}

// Reader follows the file from where it ended when the Reader was made.
type Reader struct {
	path string

	mu   sync.Mutex
	file *os.File // nil: there was none yet
	rest []byte   // of a line that has not ended
}

// NewReader starts at the end of what is there.
func NewReader(path string) (*Reader, error) {
	r := &Reader{path: path}
	if err := r.open(); err != nil || r.file == nil {
		return r, err
	}
	_, err := r.file.Seek(0, io.SeekEnd)
	return r, err
}

func (r *Reader) open() error {
	f, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		r.file = f
	}
	return err
}

// Read answers what was noted since the last call. A line that is none is skipped.
func (r *Reader) Read() ([]Observation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Observation
	for {
		if r.file == nil {
			if err := r.open(); err != nil || r.file == nil {
				return all, err
			}
		}
		moved := r.moved() // asked before the read: what comes after it is in the new file
		data, err := io.ReadAll(r.file)
		if err != nil {
			return all, err
		}
		all = append(all, r.lines(data)...)
		if !moved {
			return all, nil
		}
		r.file.Close()
		r.file, r.rest = nil, nil
	}
}

// moved reports whether another file has the name now.
func (r *Reader) moved() bool {
	own, err := r.file.Stat()
	if err != nil {
		return true
	}
	named, err := os.Stat(r.path)
	return err == nil && !os.SameFile(own, named)
}

func (r *Reader) lines(data []byte) []Observation {
	data = append(r.rest, data...)
	end := bytes.LastIndexByte(data, '\n') + 1
	r.rest = bytes.Clone(data[end:])
	var all []Observation
	for line := range bytes.Lines(data[:end]) {
		var o Observation
		if json.Unmarshal(line, &o) == nil {
			all = append(all, o)
		}
	}
	return all
}

// Close the file.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
