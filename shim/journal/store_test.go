package journal

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/durable"
)

// newStore has a journal of a VM that runs here.
func newStore(t *testing.T) (*Store, string) {
	t.Helper()
	s, dir := new(Store), t.TempDir()
	s.Begin(dir, &Journal{Phase: Own, Generation: 1})
	if err := s.Update(func(*Journal) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A draft becomes the journal where it is what is written then, byte by byte. After any other
// change, and whatever has become of the draft, the journal says what was meant.
func TestPrewrite(t *testing.T) {
	errFake := errors.New("fake")
	for name, c := range map[string]struct {
		before func(s *Store, draft string) error
		change func(*Journal)
		used   bool
	}{
		"as foreseen":    {change: (*Journal).Prepare, used: true},
		"another change": {change: (*Journal).EndOperation},
		"a change before it": {change: (*Journal).Prepare, before: func(s *Store, _ string) error {
			return s.Update(func(j *Journal) error { j.Digest = "d"; return nil })
		}},
		"a change that is refused before it": {change: (*Journal).Prepare, used: true,
			before: func(s *Store, _ string) error {
				if err := s.Update(func(*Journal) error { return errFake }); !errors.Is(err, errFake) {
					return err
				}
				return nil
			}},
		"it is gone": {change: (*Journal).Prepare, before: func(_ *Store, draft string) error {
			return os.Rename(draft, draft+"x")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newStore(t)
			if err := s.Prewrite((*Journal).Prepare); err != nil {
				t.Fatal(err)
			}
			if j, err := Read(dir); err != nil || j.Phase != Own {
				t.Fatalf("with a draft the journal is %+v, %v", j, err)
			}
			draft := inode(t, draftFile(dir))
			if c.before != nil {
				if err := c.before(s, draftFile(dir)); err != nil {
					t.Fatal(err)
				}
			}
			want := *s.Load()
			c.change(&want)
			if err := s.Update(func(j *Journal) error { c.change(j); return nil }); err != nil {
				t.Fatal(err)
			}
			if j, err := Read(dir); err != nil || j.Phase != want.Phase || j.Digest != want.Digest ||
				s.Load().Phase != want.Phase {
				t.Errorf("journal %+v, %v; want %s of %q", j, err, want.Phase, want.Digest)
			}
			if used := inode(t, File(dir)) == draft; used != c.used {
				t.Errorf("the draft is the journal: %v", used)
			}
		})
	}
}

// A draft that the disk does not take is an error, and the change is written all the same.
func TestNoRoomForADraft(t *testing.T) {
	s, dir := newStore(t)
	if err := os.Mkdir(draftFile(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Prewrite((*Journal).Prepare); err == nil {
		t.Error("the draft was written")
	}
	if err := s.Update(func(j *Journal) error { j.Prepare(); return nil }); err != nil {
		t.Fatal(err)
	}
	if j, err := Read(dir); err != nil || j.Phase != Prepared {
		t.Errorf("journal %+v, %v", j, err)
	}
}

// A journal whose directory could not be synced is the old one again, in memory and on disk.
func TestUnsyncedJournalIsTakenBack(t *testing.T) {
	s, dir := newStore(t)
	real, errFake := durable.SyncDir, errors.New("fake")
	t.Cleanup(func() { durable.SyncDir = real })
	durable.SyncDir = func(string) error { return errFake }
	if err := s.Update(func(j *Journal) error { j.Phase = Prepared; return nil }); !errors.Is(err, errFake) {
		t.Errorf("update = %v", err)
	}
	if j, err := Read(dir); err != nil || j.Phase != Own || s.Load().Phase != Own {
		t.Errorf("journal is %v, %v; in memory %s", j, err, s.Load().Phase)
	}
}
