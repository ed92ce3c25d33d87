package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/internal/failpoint"
)

// Store has the journal of one VM, in memory and on disk. Changes are made one after the
// other, in the order in which they are written.
type Store struct {
	dir     string
	current atomic.Pointer[Journal] // what it points to is never changed

	writing    sync.Mutex // held while a change is made and written
	prewritten []byte     // what draftFile has; nil: nothing that may be used. writing guards it
	closed     bool       // Settle writes nothing any more. writing guards it

	unwritten atomic.Pointer[error] // why the disk has another journal than memory; nil: it has that one
}

// Begin gives the store its directory and the journal that it begins with. It writes nothing, and
// comes before every other call.
func (s *Store) Begin(dir string, j *Journal) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.dir, s.closed = dir, false
	s.current.Store(j)
	s.unwritten.Store(nil)
}

// Load answers the journal as it is now; nil before Begin. The caller does not change it.
func (s *Store) Load() *Journal { return s.current.Load() }

// Unwritten answers why the disk has another journal than Load answers; nil: it has that one.
func (s *Store) Unwritten() error {
	if err := s.unwritten.Load(); err != nil {
		return *err
	}
	return nil
}

// Update changes the journal and makes it durable. On an error the journal is as before. If the
// new one was renamed but could not be made durable, the old one is written back. Where the disk
// does not take that either, see Unwritten. An error of change is returned as it is.
func (s *Store) Update(change func(*Journal) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	old := s.Load()
	next := *old
	if err := change(&next); err != nil {
		return err
	}
	err := s.put(&next)
	if err == nil {
		s.current.Store(&next)
		return nil
	}
	if errors.Is(err, durable.ErrUnsynced) {
		e := old.Write(s.dir)
		s.noteWritten(e)
		if e != nil && !errors.Is(e, durable.ErrUnsynced) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Owe is Update for what is so already, whether the disk takes it or not. On an error the disk has
// the old journal, until Settle or the next change has written it. A crash before that leaves it
// so: a successor must be safe with it.
func (s *Store) Owe(change func(*Journal)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	next := *s.Load()
	change(&next)
	err := s.put(&next)
	s.current.Store(&next)
	s.noteWritten(err)
	return err
}

// Settle writes the journal if the disk has another one.
func (s *Store) Settle() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.Unwritten() == nil {
		return nil
	}
	next := *s.Load()
	err := s.put(&next)
	s.noteWritten(err)
	return err
}

// Close is for who removes the journal, or leaves it to another process: Settle writes nothing any more.
func (s *Store) Close() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.closed = true
	s.unwritten.Store(nil)
}

// put writes next, from the draft if that is it; writing is held.
func (s *Store) put(next *Journal) error {
	draft := s.prewritten
	s.prewritten = nil
	err := next.replace(s.dir, draft)
	if err == nil {
		s.unwritten.Store(nil)
	}
	return err
}

// noteWritten notes how a write of what memory has went; writing is held.
func (s *Store) noteWritten(err error) {
	switch {
	case err == nil:
		s.unwritten.Store(nil)
	case !s.closed:
		s.unwritten.Store(&err)
	}
}

// Prewrite writes what the next change of the journal is expected to make of it, without its name:
// that change waits for one sync less. Another change is written as if there were no draft. A draft that is not
// the change, byte by byte, is never used. On an error there is no draft.
func (s *Store) Prewrite(change func(*Journal)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	next := *s.Load()
	change(&next)
	s.prewritten = nil
	data, err := next.encode()
	if err == nil {
		err = durable.Stage(draftFile(s.dir), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("prewrite journal: %w", err)
	}
	s.prewritten = data
	return nil
}

// draftFile is one that no reader opens: a draft that is left over lies there for as long as the VM.
func draftFile(dir string) string { return durable.Unfinished(File(dir) + ".draft") }

// Write makes j durable in dir: a crash leaves the old or the new one, whole.
func (j *Journal) Write(dir string) error { return j.replace(dir, nil) }

// replace is store where dir has a draft; nil: none.
func (j *Journal) replace(dir string, draft []byte) error {
	data, err := j.encode()
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write journal: %w", durable.DiskError(err))
	}
	err = failpoint.Record("journal", string(j.Phase), func() error {
		if bytes.Equal(data, draft) {
			if err := durable.Rename(draftFile(dir), File(dir)); err == nil || errors.Is(err, durable.ErrUnsynced) {
				return err
			}
		}
		return durable.WriteFile(File(dir), data, 0o600)
	})
	if err != nil {
		return fmt.Errorf("write journal: %w", durable.DiskError(err))
	}
	return nil
}

// schema is the version that j is written as: a build that knows no pods reads the journals of other VMs.
func (j *Journal) schema() int {
	if j.Spec != nil && j.Spec.Pod != nil {
		return version.Journal
	}
	return versionWithoutPods
}

// versionWithoutPods is the version of a journal of a VM that is not a pod.
const versionWithoutPods = 1

func (j *Journal) encode() ([]byte, error) {
	j.Version = j.schema()
	return json.Marshal(j)
}
