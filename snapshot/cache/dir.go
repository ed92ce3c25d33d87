package cache

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/store"
)

// Dir is one repository's part of the cache, as a job uses it that can reach nothing else.
type Dir struct {
	path   string
	beside string // read from, and not written to; may be empty
	opened time.Time
	note   func() // after each noteEvery bytes that were kept

	mu     sync.Mutex
	usage  Usage
	spent  time.Duration
	noted  uint64 // of usage.KeptBytes
	broken error  // of a write
}

var _ store.Keeper = (*Dir)(nil)

// noteEvery is how much may be kept until somebody looks at the limit.
const noteEvery = 64 << 20

// NewDir uses the two directories of a lease. note, if not nil, is called now and then when much
// was kept: the cache may be above its limit.
func NewDir(path, beside string, note func()) *Dir {
	if note == nil {
		note = func() {}
	}
	return &Dir{path: path, beside: beside, opened: time.Now(), note: note}
}

// Open implements store.Keeper.
func (d *Dir) Open(name string) (io.ReadCloser, int64, bool) {
	f, size, err := d.open(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if !strings.HasPrefix(name, store.KeptParts) { // the whole was asked for
			d.usage.Misses++
		}
		return nil, 0, false
	}
	d.usage.Hits++
	d.usage.HitBytes += uint64(size)
	return f, size, true
}

// open looks in the directory, then in the second one.
func (d *Dir) open(name string) (*os.File, int64, error) {
	f, size, err := openRegular(filepath.Join(d.path, name))
	if err != nil && d.beside != "" {
		f, size, err = openRegular(filepath.Join(d.beside, name))
	}
	if err == nil {
		d.Touch(name)
	}
	return f, size, err
}

// openRegular answers a regular file only: a worker that a snapshot has taken over may have
// made something else.
func openRegular(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = os.ErrInvalid
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (d *Dir) read(name string, limit int64) ([]byte, error) {
	f, size, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, os.ErrInvalid
	}
	data := make([]byte, size)
	_, err = io.ReadFull(f, data)
	return data, err
}

// Touch implements store.Keeper.
func (d *Dir) Touch(name string) {
	now := time.Now()
	if os.Chtimes(filepath.Join(d.path, name), now, now) != nil && d.beside != "" {
		_ = os.Chtimes(filepath.Join(d.beside, name), now, now)
	}
}

// Discard implements store.Keeper.
func (d *Dir) Discard(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.usage.Hits > 0 {
		d.usage.Hits-- // it was none
		d.usage.Misses++
	}
	d.usage.Damaged++
	_ = os.Remove(filepath.Join(d.path, name))
}

// Keep implements store.Keeper. What cannot be kept at once is not kept: a cache must not
// slow down who fills it, nor fill the disk. Bytes are not synced, since a file that a power
// loss has damaged is found by its digest.
func (d *Dir) Keep(name string, size int64, parts ...store.Part) {
	var n int64
	for _, p := range parts {
		n += int64(len(p.Data))
	}
	if why := d.unwilling(n); why != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.unkept(n, why)
		return
	}
	begun := time.Now()
	err := d.write(name, size, parts)
	d.mu.Lock()
	d.spent += time.Since(begun)
	if err == nil {
		d.usage.KeptBytes += uint64(n)
	} else {
		d.broken = err
		d.unkept(n, err)
	}
	due := d.usage.KeptBytes-d.noted >= noteEvery
	if due {
		d.noted = d.usage.KeptBytes
	}
	d.mu.Unlock()
	if due {
		d.note()
	}
}

// unkept counts it; d.mu is held.
func (d *Dir) unkept(n int64, why error) {
	d.usage.UnkeptBytes += uint64(n)
	d.usage.Unkept = why.Error()
}

// patience is the time that writing may take in any case; above it, it is bounded by the
// time that the job has taken. Several write at once, so that this is a part of it.
const patience = time.Second

// Why something is not kept.
var (
	errSlow = errors.New("its disk is too slow for what passes")
	errFull = errors.New("all that it may have is in use (cache.packs)")
	errDisk = errors.New("its file system has no more than what the cache leaves to others")
)

func (d *Dir) unwilling(n int64) error {
	d.mu.Lock()
	broken, slow := d.broken, d.spent > patience+time.Since(d.opened)
	d.mu.Unlock()
	switch {
	case broken != nil:
		return broken
	case slow:
		return errSlow
	}
	if _, err := os.Lstat(filepath.Join(d.path, fullFile)); err == nil {
		return errFull
	}
	free, err := spare(d.path)
	if err == nil && n > free {
		err = errDisk
	}
	return err
}

func (d *Dir) write(name string, size int64, parts []store.Part) (err error) {
	f, err := os.CreateTemp(d.path, "new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = f.Truncate(size)
	for _, p := range parts {
		if err == nil {
			_, err = f.WriteAt(p.Data, p.Offset)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	path := filepath.Join(d.path, name)
	if err := os.Rename(f.Name(), path); err == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(path), os.Rename(f.Name(), path)) // over a directory, which is none of ours
}

// Usage since the start; nil of nil.
func (d *Dir) Usage() *Usage {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.usage
	return &u
}

// Paths of the directory and of the second one, which may be empty; of nil both are.
func (d *Dir) Paths() (path, beside string) {
	if d == nil {
		return "", ""
	}
	return d.path, d.beside
}

// The cache leaves a part of its file system to others.
const (
	sparePart = 20      // one of so many
	spareMost = 8 << 30 // and not more than that
)

// spare is how many bytes more the cache may take of its file system; negative: it has too
// many.
func spare(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	all, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	return free - min(all/sparePart, spareMost), nil
}
