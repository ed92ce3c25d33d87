package stdio

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/filelock"
	"godwit.dev/godwit/internal/logtimes"
)

// LogFile is where a woken VM's output goes, where that is a file. Its owner alone reads it,
// and a guest that talks does not fill the disk: a file that is full becomes PATH.1, the one
// of that name PATH.2. Each output has a descriptor of its own, which follows before a write.
type LogFile struct {
	Path     string
	MaxBytes int64  // bytes of one file; 0: no bound
	Files    int    // that are kept, the current one included
	UID      string // of the VM

	once  sync.Once
	times logtimes.Writer
}

const logFlags = os.O_APPEND | os.O_CREATE | os.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK

// open makes file and directory where they are not there.
func (l *LogFile) open() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.Path, logFlags, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link: name the file itself (--stdio, stdio_uri): %w", l.Path,
			errdefs.ErrFailedPrecondition)
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

// makeRoom readies f, which is open on the log, for n bytes more. Another output may have
// rotated the log meanwhile, and the host's administrator may have removed it. A nil
// logFile, and what is no file, has room.
func (l *LogFile) makeRoom(f *os.File, n int) error {
	if l == nil {
		return nil
	}
	for {
		mine, err := f.Stat()
		if err != nil || !mine.Mode().IsRegular() {
			return err
		}
		there, err := os.Lstat(l.Path)
		if err == nil && os.SameFile(mine, there) {
			if l.MaxBytes == 0 || mine.Size() == 0 || mine.Size()+int64(n) <= l.MaxBytes {
				return nil
			}
			err = l.rotate(mine)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := l.reopen(f); err != nil {
			return err
		}
	}
}

// note writes down when the last n bytes were written to f. The output goes on without a time where that fails.
func (l *LogFile) note(f *os.File, n int, at time.Time) {
	if l == nil || n <= 0 {
		return
	}
	if end, err := f.Seek(0, io.SeekCurrent); err == nil {
		_ = l.timed().Note(f, end-int64(n), at)
	}
}

// own writes down that what comes is the VM's: an earlier VM of its name may have written to the log.
func (l *LogFile) own(f *os.File) {
	if l != nil {
		_ = l.timed().Own(f)
	}
}

func (l *LogFile) timed() *logtimes.Writer {
	l.once.Do(func() { l.times.Path, l.times.UID = l.Path, l.UID })
	return &l.times
}

// rotate moves the log aside, unless another output was faster.
func (l *LogFile) rotate(full os.FileInfo) error {
	lock, err := os.OpenFile(l.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := filelock.Lock(lock, unix.LOCK_EX); err != nil {
		return &os.PathError{Op: "lock", Path: l.Path, Err: err}
	}
	if there, err := os.Lstat(l.Path); err != nil || !os.SameFile(full, there) {
		return err
	}
	defer func() { _ = logtimes.Sweep(l.Path) }() // what is left goes with the next one
	if l.Files <= 1 {
		return os.Remove(l.Path)
	}
	for i := l.Files - 1; i > 0; i-- {
		if err := os.Rename(l.name(i-1), l.name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (l *LogFile) name(i int) string {
	if i == 0 {
		return l.Path
	}
	return l.Path + "." + strconv.Itoa(i)
}

// reopen has f be the log that is there now. The descriptor of f stays the same.
func (l *LogFile) reopen(f *os.File) error {
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
