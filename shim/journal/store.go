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
}

// Begin gives the store its directory and the journal that it begins with. It writes nothing, and
// comes before every other call.
func (s *Store) Begin(dir string, j *Journal) {
	s.dir = dir
	s.current.Store(j)
}

// Load answers the journal as it is now; nil before Begin. The caller does not change it.
func (s *Store) Load() *Journal { return s.current.Load() }

// Update changes the journal and makes it durable. On an error the journal is as before. If the
// new one was renamed but could not be made durable, the old one is written back as well as the
// disk takes it. An error of change is returned as it is.
func (s *Store) Update(change func(*Journal) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	old := s.Load()
	next := *old
	if err := change(&next); err != nil {
		return err
	}
	draft := s.prewritten
	s.prewritten = nil
	if err := next.replace(s.dir, draft); err != nil {
		if errors.Is(err, durable.ErrUnsynced) {
			if e := old.Write(s.dir); e != nil && !errors.Is(e, durable.ErrUnsynced) {
				err = errors.Join(err, e)
			}
		}
		return err
	}
	s.current.Store(&next)
	return nil
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
