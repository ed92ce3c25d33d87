package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FileNotes have the kernel note which blocks of a file of ext4 are written. They are whole as far as Settle says so.
// They end with the process.
type FileNotes struct {
	Map *os.File // for OpenNoted

	file     *os.File
	size     int64
	closed   *os.File // is told of who has closed the file after it might write
	words    notedWords
	programs []*os.File
	links    []*os.File
}

// NotesFiles refuses a kernel before Linux 6.14. There an event of fallocate comes before the lock of its file. So a
// call that was under way when the notes began could clear a part of a block after the block was read, unnoted.
func NotesFiles() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return notesOf(unix.ByteSliceToString(u.Release[:]))
}

func notesOf(release string) error {
	const major, minor = 6, 14
	var is, sub int
	if _, err := fmt.Sscanf(release, "%d.%d", &is, &sub); err != nil || is < major || is == major && sub < minor {
		return fmt.Errorf("kernel %s notes no writes: it has to be Linux %d.%d or newer", release, major, minor)
	}
	return nil
}

// errNotNoted is of a file that has no such notes.
var errNotNoted = errors.New("its file system is not ext4")

// NoteFile begins to note what is written to a file. It keeps its own copy of f. writers is how many open files may
// write to it, all of them through the kernel's cache: if there are others it is refused. A file system that is frozen
// holds the try-out up. So NoteFile ends with ctx, and what it holds is given back later.
func NoteFile(ctx context.Context, f *os.File, writers int) (*FileNotes, error) {
	n := &FileNotes{}
	err := n.open(f)
	begun := make(chan error, 1)
	if err == nil {
		go func() { begun <- n.begin(filepath.Dir(f.Name()), writers) }()
		select {
		case err = <-begun:
		case <-ctx.Done():
			go func() { _ = errors.Join(<-begun, n.Close()) }()
			return nil, fmt.Errorf("note writes: %w", context.Cause(ctx))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("note writes: %w", err), n.Close())
	}
	return n, nil
}

// open asks nothing that a frozen file system holds up.
func (n *FileNotes) open(f *os.File) error {
	var at unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(f.Fd()), &at), unix.Fstat(int(f.Fd()), &st)); err != nil {
		return err
	}
	if err := NotesFiles(); err != nil {
		return err
	}
	if at.Type != unix.EXT4_SUPER_MAGIC || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size <= 0 {
		return errNotNoted
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n.file, n.size = os.NewFile(uintptr(fd), f.Name()), st.Size
	n.closed, err = watchWriters(n.file)
	return err
}

func (n *FileNotes) begin(dir string, writers int) (err error) {
	shift, blocks := notedShift(n.size)
	if n.Map, err = notedMap(blocks); err != nil {
		return err
	}
	if n.words, err = mapNoted(n.Map, blocks); err != nil {
		return err
	}
	if err := n.attach(shift, blocks); err != nil {
		return err
	}
	if err := n.try(dir); err != nil {
		return fmt.Errorf("try it: %w", err)
	}
	return n.check(writers)
}

// watchWriters is told by the kernel of each open file that might write, once it is closed.
func watchWriters(f *os.File) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch writers: %w", err)
	}
	w := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_CLOSE_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch writers: %w", err), w.Close())
	}
	return w, nil
}

func notedMap(blocks uint32) (*os.File, error) {
	a := new(attr)
	for at, v := range map[int]uint32{0: unix.BPF_MAP_TYPE_ARRAY, 4: 4, 8: uint32(notedSize(blocks)), 12: 1,
		16: unix.BPF_F_MMAPABLE} { // kind, key, value, entries, flags
		a.u32(at, v)
	}
	fd, err := bpf(unix.BPF_MAP_CREATE, a)
	if err != nil {
		return nil, fmt.Errorf("make map: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpf map"), nil
}

// attach loads the programs and has the kernel run them.
func (n *FileNotes) attach(shift int32, blocks uint32) error {
	inode, err := offsetsOfInodes()
	if err != nil {
		return err
	}
	for _, h := range fileHooks {
		p := &fileProgram{table: int(n.Map.Fd()), blocks: blocks, shift: shift, inode: *inode,
			assembler: assembler{labels: map[string]int{}, jumps: map[int]string{}}}
		if err := n.hook(h.event, p.build(h)); err != nil {
			return fmt.Errorf("event %s: %w", h.event, err)
		}
	}
	return nil
}

func (n *FileNotes) hook(event string, code []instruction) error {
	program, err := load(unix.BPF_PROG_TYPE_RAW_TRACEPOINT, 0, code)
	if err != nil {
		return err
	}
	n.programs = append(n.programs, program)
	name := append([]byte(event), 0)
	a := new(attr)
	a.pointer(0, unsafe.Pointer(&name[0]))
	a.u32(8, uint32(program.Fd()))
	fd, err := bpf(unix.BPF_RAW_TRACEPOINT_OPEN, a)
	runtime.KeepAlive(name)
	if err != nil {
		return fmt.Errorf("attach program: %w", err)
	}
	n.links = append(n.links, os.NewFile(uintptr(fd), "bpf link"))
	return nil
}

// ask has the kernel say of a file that its programs run for it, and who may write to it.
func (n *FileNotes) ask(f *os.File) (writers int, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	before := n.words.get(pingsAt)
	n.words.set(deviceAt, uint64(unix.Major(st.Dev)<<20|unix.Minor(st.Dev)))
	n.words.set(askedAt, st.Ino)
	_, err = unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	n.words.set(askedAt, 0)
	if err != nil && !errors.Is(err, unix.ENXIO) {
		return 0, fmt.Errorf("look for data: %w", err)
	}
	if err := n.words.lost(); err != nil {
		return 0, err
	}
	if n.words.get(pingsAt) == before {
		return 0, errors.New("the kernel runs no program for it")
	}
	return int(int32(n.words.get(writersAt))), nil
}

// skipped reports whether the kernel has ever left out a program, as it does where one begins in another. The last
// program, which answers ask, is not counted: it runs for each file of the host, and ask notices where it does not.
func (n *FileNotes) skipped() (bool, error) {
	for _, p := range n.programs[:len(fileHooks)-1] {
		if misses, err := missesOf(p); misses != 0 || err != nil {
			return true, err
		}
	}
	return false, nil
}

// missesOf is a variable for the tests: a program cannot be made to be left out.
var missesOf = func(program *os.File) (uint64, error) {
	const missesAt = 208 // struct bpf_prog_info
	info := make([]byte, missesAt+8)
	a := new(attr)
	a.u32(0, uint32(program.Fd()))
	a.u32(4, uint32(len(info)))
	a.pointer(8, unsafe.Pointer(&info[0]))
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, a)
	runtime.KeepAlive(info)
	if err == nil && int(binary.NativeEndian.Uint32(a[4:])) < len(info) {
		err = errors.New("the kernel does not count what it leaves out")
	}
	if err != nil {
		return 0, fmt.Errorf("ask for a program: %w", err)
	}
	return binary.NativeEndian.Uint64(info[missesAt:]), nil
}

// Settle is called when nothing that is to be noted is under way. Without an error the notes up to here are whole, and
// a reader may believe them. With one it may not, now or later.
func (n *FileNotes) Settle(writers int) error {
	err := n.check(writers)
	if err == nil {
		n.words.set(settledAt, 1)
		return nil
	}
	if n.words != nil {
		n.words.lose(lostClosed)
	}
	return err
}

// check says why the notes may not be whole.
func (n *FileNotes) check(writers int) error {
	if n.words == nil {
		return os.ErrClosed
	}
	has, err := n.ask(n.file)
	switch {
	case err != nil:
		return err
	case has != writers, writers < 1:
		return fmt.Errorf("%d open files may write to it, not %d", has, writers)
	}
	if heard, err := unix.IoctlGetInt(int(n.closed.Fd()), unix.TIOCINQ); heard != 0 || err != nil {
		return errors.Join(errors.New("another process had it open for writing"), err)
	}
	if info, err := n.file.Stat(); err != nil || info.Size() != n.size {
		return errors.Join(errors.New("its size has changed"), err)
	}
	skipped, err := n.skipped()
	if skipped {
		err = errors.Join(err, errors.New(lostReasons[lostSkipped]))
	}
	return err
}

// Close ends the notes. The kernel takes some time to let go of its programs, which Close does not wait for: a VM that
// moves may stand still.
func (n *FileNotes) Close() error {
	if n.words != nil {
		n.words.lose(lostClosed) // also for a reader that still has them
		n.words.unmap()
		n.words = nil
	}
	all := append(append(n.links, n.programs...), n.Map, n.file, n.closed)
	go func() {
		for _, f := range all {
			if f != nil {
				f.Close()
			}
		}
	}()
	n.links, n.programs, n.Map, n.file, n.closed = nil, nil, nil, nil, nil
	return nil
}
