package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// logFile is where a woken VM's output goes, where that is a file. Its owner alone reads it,
// and a guest that talks does not fill the disk: a file that is full becomes PATH.1, the one
// of that name PATH.2. Each output has a descriptor of its own, which follows before a write.
type logFile struct {
	path  string
	most  int64 // bytes of one file; 0: no bound
	files int   // that are kept, the current one included
}

// logOf answers the file that the output of this VM goes to; nil where it is another kind of
// place, or the VM was booted here: the file is then its client's, as with any runtime.
func (t *Task) logOf(s Stdio) *logFile {
	vm := t.vm
	u, err := url.Parse(s.Stdout)
	j := vm.noted()
	if woken := vm.origin.restored || j.Restored != nil || j.Move; err != nil || u.Scheme != "file" || !woken {
		return nil
	}
	cfg := vm.host.Config.Logs
	return &logFile{path: u.Path, most: int64(cfg.MaxBytes), files: cfg.Files}
}

// outputOf takes away the output that the configuration names, of a task that had none before.
// What an order names stays.
func (t *Task) outputOf(s Stdio, r Resume) Stdio {
	vm := t.vm
	configured, err := vm.host.Config.TaskOutput(vm.namespace, vm.id)
	if err != nil || !r.Nowhere || s.Stdout != configured.String() {
		return s
	}
	return Stdio{Stdin: s.Stdin, Terminal: s.Terminal}
}

// nowhere reports whether a process has no output.
func (st *streams) nowhere() bool { return st.stdout == nil && st.stderr == nil }

const logFlags = os.O_APPEND | os.O_CREATE | os.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK

// open makes file and directory where they are not there.
func (l *logFile) open() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.path, logFlags, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link: name the file itself (--stdio, stdio_uri): %w", l.path, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 { // of an earlier build
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// room readies f, which is open on the log, for n bytes more. Another output may have
// rotated the log meanwhile, and whoever looks after the host's logs removed it. A nil
// logFile, and what is no file, has room.
func (l *logFile) room(f *os.File, n int) error {
	if l == nil {
		return nil
	}
	for {
		mine, err := f.Stat()
		if err != nil || !mine.Mode().IsRegular() {
			return err
		}
		there, err := os.Lstat(l.path)
		if err == nil && os.SameFile(mine, there) {
			if l.most == 0 || mine.Size() == 0 || mine.Size()+int64(n) <= l.most {
				return nil
			}
			err = l.rotate(mine)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := l.follow(f); err != nil {
			return err
		}
	}
}

// rotate moves the log aside, unless another output was faster.
func (l *logFile) rotate(full os.FileInfo) error {
	lock, err := os.OpenFile(l.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "lock", Path: l.path, Err: err}
	}
	if there, err := os.Lstat(l.path); err != nil || !os.SameFile(full, there) {
		return err
	}
	if l.files <= 1 {
		return os.Remove(l.path)
	}
	for i := l.files - 1; i > 0; i-- {
		if err := os.Rename(l.name(i-1), l.name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (l *logFile) name(i int) string {
	if i == 0 {
		return l.path
	}
	return l.path + "." + strconv.Itoa(i)
}

// follow has f be the log that is there now. Whoever has f notices nothing.
func (l *logFile) follow(f *os.File) error {
	now, err := l.open()
	if err != nil {
		return err
	}
	defer now.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var dup error
	if err := raw.Control(func(fd uintptr) { dup = unix.Dup3(int(now.Fd()), int(fd), unix.O_CLOEXEC) }); err != nil {
		return err
	}
	return os.NewSyscallError("dup3", dup)
}

// write is Write of an output, in a log that has room for it. A log that cannot be rotated
// is written to all the same, unless the disk is full.
func (s sink) write(data []byte) (int, error) {
	if err := s.log.room(s.to, len(data)); durable.IsFull(err) {
		return 0, err
	}
	return s.to.Write(data)
}
