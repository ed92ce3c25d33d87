package template

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/dircache"
)

// Files of a template's directory, and the directories next to the templates.
const (
	headFile  = "template.json"
	stateFile = "state"
	ramFile   = "ram"

	requestsDir = "wishes"
	refusedDir  = "refused"
)

// maxHead bounds what is read of a head: a run of pages takes some 20 bytes.
const maxHead = 64 << 20

// maxRequests bounds the file of one shape's requests.
const maxRequests = 1 << 20

// Store is the templates of a node, in a directory: a cache whose entries are called by the
// keys of shapes.
type Store struct{ Dir string }

func (s Store) cache() dircache.Cache { return dircache.Cache{Dir: s.Dir} }

// head is template.json: a line of JSON, and a line with its sum.
type head struct {
	Shape  Shape     `json:"shape"`
	Kernel string    `json:"kernel"` // release of the guest's
	Made   time.Time `json:"made"`
	State  string    `json:"state"` // sum of the device state
	RAM    *pages    `json:"ram"`
}

// Template is one, leased: it is not evicted until Close, and one that is removed can be read
// until then.
type Template struct {
	Kernel string
	State  *os.File // its content was compared with its sum
	pages  *pages
	ram    *os.File
	lease  *dircache.Lease
}

// Close lets go of the files.
func (t *Template) Close() error { return errors.Join(t.State.Close(), t.ram.Close(), t.lease.Close()) }

// CopyRAM writes the RAM into the file, which has its size and no content.
func (t *Template) CopyRAM(ctx context.Context, ram *os.File) error {
	return t.pages.copyTo(ctx, ram, t.ram)
}

// Open answers the template of a shape. NotFound if there is none, DataLoss if it is
// damaged.
func (s Store) Open(shape Shape) (_ *Template, err error) {
	lease, err := s.cache().Use(shape.Key())
	if err != nil {
		return nil, fmt.Errorf("open template: %w", err)
	}
	t, err := open(lease.Dir, shape)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open template %s: %w", lease.Dir, err), lease.Close())
	}
	t.lease = lease
	return t, nil
}

func open(dir string, shape Shape) (*Template, error) {
	h, err := readHead(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	if err != nil {
		return nil, err
	}
	if h.Shape.Key() != shape.Key() {
		return nil, damaged("shape")
	}
	if err := h.RAM.check(shape.Memory); err != nil {
		return nil, err
	}
	t := &Template{Kernel: h.Kernel, pages: h.RAM}
	if t.State, err = os.Open(filepath.Join(dir, stateFile)); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	if t.ram, err = os.Open(filepath.Join(dir, ramFile)); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss), t.State.Close())
	}
	if err := t.verify(h); err != nil {
		return nil, errors.Join(err, t.State.Close(), t.ram.Close())
	}
	return t, nil
}

// verify compares what is there with what the head says; RAM is compared while it is read.
func (t *Template) verify(h *head) error {
	info, err := t.ram.Stat()
	if err != nil {
		return err
	}
	if uint64(info.Size()) != h.RAM.bytes() {
		return damaged("size of RAM's file")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, t.State); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.State {
		return damaged("device state")
	}
	_, err = t.State.Seek(0, io.SeekStart)
	return err
}

func readHead(dir string) (*head, error) {
	f, err := os.Open(filepath.Join(dir, headFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHead))
	if err != nil {
		return nil, err
	}
	line, sum, ok := bytes.Cut(data, []byte("\n"))
	want := sha256.Sum256(line)
	if !ok || string(bytes.TrimSpace(sum)) != hex.EncodeToString(want[:]) {
		return nil, damaged("head")
	}
	h := new(head)
	if err := json.Unmarshal(line, h); err != nil || h.RAM == nil {
		return nil, damaged("head")
	}
	return h, nil
}

// Discard throws the template of a shape away, and refuses to have it made again for a
// while.
func (s Store) Discard(shape Shape, reason error) error {
	key := shape.Key()
	return errors.Join(s.refuse(key, reason), s.cache().Remove(key))
}

func (s Store) refuse(key string, reason error) error {
	dir := filepath.Join(s.Dir, refusedDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, key), []byte(reason.Error()+"\n"), 0o600)
}

// Request notes that a VM of the shape was booted for want of a template.
func (s Store) Request(shape Shape) error {
	dir := filepath.Join(s.Dir, requestsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("ask for a template: %w", err)
	}
	line, err := json.Marshal(shape)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, shape.Key())
	if info, err := os.Stat(path); err == nil && info.Size() > maxRequests {
		return nil // no process takes them
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("ask for a template: %w", err)
	}
	_, err = f.Write(append(line, '\n')) // one call: two shims at once make two lines
	return errors.Join(err, f.Close())
}
