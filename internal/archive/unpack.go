package archive

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Unpacker writes a tar stream below a directory. A file appears under its name once it is whole.
type Unpacker struct {
	Root  *os.Root
	Under string // the name that all members have or lie below; empty: any
	// Owners keeps owners and the bits that give a file another user's rights. Otherwise files are
	// the caller's, and have none of these bits.
	Owners bool
	// Follow lets symbolic links that lie in the directory lead on, below it. Otherwise a member
	// whose parent is a link is refused: it would land where it was not asked for.
	Follow bool

	result Result
	dirs   []made

	mu      sync.Mutex
	partial string          // a file that is not whole yet
	swept   map[string]bool // directories in which what a killed copy has left was looked for
	ended   bool
}

// made is a directory that was made here: its mode and time are set last.
type made struct {
	name  string
	attrs attrs
}

// attrs are what a header says of a file. The header itself may hold a megabyte.
type attrs struct {
	mode     fs.FileMode
	uid, gid int
	modified time.Time
}

func attrsOf(h *tar.Header) attrs {
	return attrs{mode: h.FileInfo().Mode() & (fs.ModePerm | special), uid: h.Uid, gid: h.Gid, modified: h.ModTime}
}

// Unpack reads the stream to its end.
func (u *Unpacker) Unpack(r io.Reader) (Result, error) {
	defer u.Abort()
	stream := tar.NewReader(r)
	for {
		h, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return u.result, u.adornDirs()
		}
		if err != nil {
			return u.result, broken(err)
		}
		if err := u.member(h, stream); err != nil {
			return u.result, err
		}
	}
}

// Abort takes away the file that is not whole, and lets no other begin. Any goroutine may call it.
func (u *Unpacker) Abort() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	u.drop()
}

func (u *Unpacker) drop() {
	if u.partial != "" {
		_ = u.Root.Remove(u.partial)
		u.partial = ""
	}
}

// broken is the error of a stream that is no archive, or ends early.
func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) {
		return fmt.Errorf("the stream is no tar archive: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("read archive: %w", err)
}

func (u *Unpacker) member(h *tar.Header, content io.Reader) error {
	name, err := member(h.Name, u.Under)
	if err != nil {
		return err
	}
	if err := Dense(h); err != nil {
		return why(name, err)
	}
	if err := u.parents(name); err != nil {
		return why(name, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, h)
	case tar.TypeReg:
		if err = u.fits(h); err == nil {
			err = u.file(name, h, content)
		}
	case tar.TypeSymlink:
		err = u.link(name, func(temp string) error { return u.Root.Symlink(h.Linkname, temp) }, h)
	case tar.TypeLink:
		err = u.hardLink(name, h.Linkname)
	case tar.TypeXGlobalHeader:
	default:
		u.result.skip(name)
	}
	return why(name, err)
}

func (u *Unpacker) hardLink(name, target string) error {
	to, err := member(target, u.Under)
	if err != nil {
		return err
	}
	if err := u.parents(to); err != nil {
		return err
	}
	return u.link(name, func(temp string) error { return u.Root.Link(to, temp) }, nil)
}

func (u *Unpacker) dir(name string, h *tar.Header) error {
	if name == "." {
		return nil
	}
	err := u.Root.Mkdir(name, 0o700)
	if errors.Is(err, os.ErrExist) {
		info, err := u.Root.Lstat(name)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("a directory cannot take the place of what is no directory: %w", errdefs.ErrFailedPrecondition)
		}
		return err // one that was there keeps its mode
	}
	if err == nil {
		u.dirs = append(u.dirs, made{name, attrsOf(h)})
	}
	return err
}

// adornDirs goes from the leaves to the root: a mode may forbid to write below.
func (u *Unpacker) adornDirs() error {
	for _, d := range slices.Backward(u.dirs) {
		if err := u.adorn(d.name, d.attrs); err != nil {
			return why(d.name, err)
		}
	}
	return nil
}

// adorn sets owner, mode and time of a file or directory. The owner comes first: chown clears setuid.
func (u *Unpacker) adorn(name string, a attrs) error {
	if !u.Owners {
		a.mode &^= special
	} else if err := u.Root.Lchown(name, a.uid, a.gid); err != nil {
		return err
	}
	if err := u.Root.Chmod(name, a.mode); err != nil {
		return err
	}
	return u.Root.Chtimes(name, time.Time{}, a.modified)
}

// begin makes what takes the place of name once it is whole, by way of try, and notes the name that it has until then.
func (u *Unpacker) begin(name string, try func(dir string) (string, error)) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return "", fmt.Errorf("the copy was called off: %w", errdefs.ErrAborted)
	}
	if info, err := u.Root.Lstat(name); err == nil && info.IsDir() {
		return "", fmt.Errorf("it is a directory: %w", errdefs.ErrFailedPrecondition)
	}
	if dir := path.Dir(name); !u.swept[dir] {
		if u.swept == nil {
			u.swept = map[string]bool{}
		}
		u.swept[dir] = true
		sweep(u.Root, dir)
	}
	var err error
	u.partial, err = try(path.Dir(name))
	return u.partial, err
}

// place gives what is whole its name.
func (u *Unpacker) place(name string, inPlace func() error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return fmt.Errorf("the copy was called off: %w", errdefs.ErrAborted)
	}
	err := u.Root.Rename(u.partial, name)
	if errors.Is(err, syscall.EBUSY) && inPlace != nil { // the file is a mount, as /etc/hosts may be
		err = inPlace()
	}
	if err == nil {
		u.drop() // a link to the same file leaves its other name
	}
	return err
}

func (u *Unpacker) file(name string, h *tar.Header, content io.Reader) error {
	var f *os.File
	temp, err := u.begin(name, func(dir string) (temp string, err error) {
		f, temp, err = create(u.Root, dir)
		return temp, err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.drop()
	}()
	n, err := io.Copy(f, content)
	u.result.Bytes += n
	if err != nil {
		return err
	}
	if err := u.adorn(temp, attrsOf(h)); err != nil {
		return err
	}
	err = u.place(name, func() error { return u.rewrite(name, f) })
	if err == nil {
		u.result.Files++
		err = f.Close()
	}
	return err
}

// rewrite writes into the file that is there.
func (u *Unpacker) rewrite(name string, from *os.File) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	f, err := u.Root.OpenFile(name, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// link makes a symbolic or a hard one. Only the first has an owner of its own.
func (u *Unpacker) link(name string, link func(temp string) error, h *tar.Header) error {
	temp, err := u.begin(name, func(dir string) (string, error) {
		temp := path.Join(dir, linkPrefix+rand.Text())
		return temp, link(temp)
	})
	if err != nil {
		return err
	}
	if h != nil && u.Owners {
		if err := u.Root.Lchown(temp, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	return u.place(name, nil)
}
