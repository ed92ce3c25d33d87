package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ClockEnv names the directory with a file for each node that says by how many seconds the
// node's clock is wrong.
const ClockEnv = "GODWIT_CLOCK"

// A clock that jumps changes what time it is and not how much of it has passed, for all that a
// program is made of: so time.Now itself adds the offset, by an overlay of the package time.
const (
	nowBefore = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowAfter  = nowBefore + "\tsec += wrongBy()\n"
	wrongBy   = `package time

import (
	"sync/atomic"
	"syscall"
)

var wrongSeconds atomic.Int64

// wrongBy answers by how many seconds this clock is wrong. Timers ask it on the scheduler's own
// stack, where no call of the system may be made: a goroutine reads the file.
func wrongBy() int64 { return wrongSeconds.Load() }

func init() {
	if _, ok := syscall.Getenv("` + ClockEnv + `"); ok {
		go func() {
			for {
				readWrong()
				Sleep(50 * Millisecond)
			}
		}()
	}
}

// readWrong changes nothing where the file cannot be read.
func readWrong() {
	dir, ok := syscall.Getenv("` + ClockEnv + `")
	node, named := syscall.Getenv("GODWIT_NODE")
	if !ok || !named {
		return
	}
	fd, err := syscall.Open(dir+"/"+node, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	var buf [24]byte
	n, err := syscall.Read(fd, buf[:])
	if err != nil || n == 0 {
		return
	}
	value, sign := int64(0), int64(1)
	for i, c := range buf[:n] {
		switch {
		case i == 0 && c == '-':
			sign = -1
		case c < '0' || c > '9':
			return
		default:
			value = value*10 + int64(c-'0')
		}
	}
	wrongSeconds.Store(sign * value)
}
`
)

// replacements are files that a build takes instead of others, by their paths; an overlay of
// the go command.
type replacements map[string]string

// clock adds the overlay of the package time.
func (r replacements) clock(goroot, dir string) error {
	file := filepath.Join(goroot, "src", "time", "time.go")
	if err := r.edit(dir, file, nowBefore, nowAfter); err != nil {
		return err
	}
	return r.put(dir, filepath.Join(goroot, "src", "time", "wrong.go"), wrongBy)
}

// edit replaces a piece of a file, which has to be there exactly once.
func (r replacements) edit(dir, file, before, after string) error {
	now := file
	if other, ok := r[file]; ok {
		now = other
	}
	data, err := os.ReadFile(now)
	if err != nil {
		return err
	}
	if n := strings.Count(string(data), before); n != 1 {
		return fmt.Errorf("change %s: it has %d times what is to be replaced: %q", file, n, before)
	}
	return r.put(dir, file, strings.Replace(string(data), before, after, 1))
}

func (r replacements) put(dir, file, text string) error {
	to, err := os.CreateTemp(dir, "*-"+filepath.Base(file))
	if err != nil {
		return err
	}
	r[file] = to.Name()
	_, err = to.WriteString(text)
	return errors.Join(err, to.Close())
}

// write makes the file that -overlay takes.
func (r replacements) write(path string) error {
	data, err := json.Marshal(map[string]any{"Replace": r})
	return errors.Join(err, os.WriteFile(path, data, 0o600))
}

// setClock makes a node's clock wrong by offset.
func setClock(dir, node string, offset time.Duration) error {
	path := filepath.Join(dir, node)
	if err := os.WriteFile(path+".new", []byte(fmt.Sprint(int64(offset/time.Second))), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
