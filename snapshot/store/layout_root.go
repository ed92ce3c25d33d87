package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// rootMark is the file that tells a directory of layouts from the place where it is not mounted. It holds the name
// that the first node to store something there drew for it.
const rootMark = "godwit-store"

// maxMark bounds it.
const maxMark = 128

// root is a directory that holds layouts, one for each VM. This node keeps in note which one it is.
type root struct {
	dir, note string

	mu     sync.Mutex
	marked bool // it is the one of the note
}

func newRoot(dir, notes string) *root {
	dir = filepath.Clean(dir)
	sum := sha256.Sum256([]byte(dir))
	return &root{dir: dir, note: filepath.Join(notes, hex.EncodeToString(sum[:8]))}
}

// below reports whether a directory lies in this one.
func (r *root) below(dir string) bool {
	return strings.HasPrefix(filepath.Clean(dir), strings.TrimSuffix(r.dir, "/")+"/")
}

// known compares the directory with the note. Fresh: this node has used no snapshot there so far.
func (r *root) known() (mark string, fresh bool, err error) {
	note, err := readMark(r.note)
	fresh = errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return "", false, fmt.Errorf("read which directory %s is: %v: %w", r.dir, err, errdefs.ErrUnavailable)
	}
	mark, err = readMark(filepath.Join(r.dir, rootMark))
	lacks := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !lacks:
		return "", false, fmt.Errorf("read which directory %s is: %v: %w", r.dir, err, errdefs.ErrUnavailable)
	case lacks && fresh, mark != "" && (fresh || note == mark):
		return mark, fresh, nil
	}
	return "", false, fmt.Errorf("%s is not the directory that this node has used: its file %s is missing, or another "+
		"one. To go on, mount the file system that was there. If the directory that is there now is the right one, remove "+
		"%s: %w", r.dir, rootMark, r.note, errdefs.ErrUnavailable)
}

// check is asked before anything is written below the directory, which may be a mere question for a right: it marks
// and notes nothing.
func (r *root) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.marked {
		return nil
	}
	_, _, err := r.known()
	return err
}

// claim is called before a snapshot is stored below the directory. The first node to do so marks it, and each node
// notes the mark: the directory counts as the same only with that.
func (r *root) claim() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.marked {
		return nil
	}
	mark, fresh, err := r.known()
	if err != nil {
		return err
	}
	if mark == "" {
		if mark, err = r.mark(); err != nil {
			return err
		}
	}
	if fresh {
		if err := r.keep(mark); err != nil {
			return err
		}
	}
	r.marked = true
	return nil
}

// see notes the mark of another node. Without one nothing is known of the directory.
func (r *root) see() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if mark, fresh, err := r.known(); err == nil && fresh && mark != "" {
		_ = r.keep(mark) // else the next claim does, or says why not
	}
}

func (r *root) keep(mark string) error {
	if err := os.MkdirAll(filepath.Dir(r.note), 0o700); err != nil {
		return err
	}
	return replaceSynced(r.note, mark)
}

// mark marks the directory, under a lock that other nodes honour: what one of them has written counts.
func (r *root) mark() (string, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return "", err
	}
	unlock, err := (&Layout{dir: r.dir}).lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(r.dir, rootMark)
	mark, err := readMark(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return mark, err
	}
	mark = rand.Text()
	return mark, replaceSynced(path, mark)
}

// replaceSynced writes a mark, or another one in its place. Others may do so at the same time.
func replaceSynced(path, mark string) error {
	tmp := tempName(path)
	if err := durable.Stage(tmp, []byte(mark+"\n"), 0o600); err != nil {
		return err
	}
	return durable.Rename(tmp, path)
}

// readMark reads a mark. The directory is one that other nodes write to as well.
func readMark(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMark))
	mark := strings.TrimSpace(string(data))
	if err == nil && mark == "" {
		err = fmt.Errorf("%s is empty. To go on, remove it", path)
	}
	return mark, err
}

func openLayout(dir string, cfg Config) (Store, error) {
	l, err := NewLayout(dir)
	if err != nil || cfg.Root == "" || cfg.Notes == "" {
		return l, err
	}
	r := newRoot(cfg.Root, cfg.Notes)
	if !r.below(dir) {
		return l, nil
	}
	if _, _, err := r.known(); err != nil {
		return nil, err
	}
	l.root = r
	return l, nil
}

// Claim prepares a store for a snapshot, while this process reaches more than the repository. Nothing else does: what
// is pushed without it may be a question for a right, which is asked before any file system is mounted.
func Claim(st Store) error {
	if l, ok := st.(*Layout); ok && l.root != nil {
		return fileError("put", Manifest("*"), l.root.claim())
	}
	return nil
}

// Note keeps which directory a snapshot is read from, while this process reaches more than the repository.
func Note(st Store) {
	if l, ok := st.(*Layout); ok && l.root != nil {
		l.root.see()
	}
}
