package archive

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// A copy takes away what a copy that was killed has left in a directory that it writes to. What a copy under way
// writes, and what only looks like it, stays.
func TestWhatAKilledCopyHasLeft(t *testing.T) {
	p := newPlace(t)
	left, link := partialPrefix+strings.Repeat("A", 26), partialPrefix+strings.Repeat("C", 26)
	whole, other := partialPrefix+strings.Repeat("D", 26), partialPrefix+"notes"
	for name, mode := range map[string]fs.FileMode{left: partialMode, "sub/" + left: partialMode, whole: 0o644,
		other: partialMode} {
		if err := os.MkdirAll(filepath.Join(p.in, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.in, name), []byte("half"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(left, filepath.Join(p.in, link)); err != nil {
		t.Fatal(err)
	}
	f, busy, err := create(p.root, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := (&Unpacker{Root: p.root}).Unpack(stream(t, file("new", "x"), file("sub/new", "x"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{left: false, "sub/" + left: false, busy: true, link: true, whole: true,
		other: true, "new": true, "sub/new": true} {
		if _, err := os.Lstat(filepath.Join(p.in, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// On a file system that serves no locks a copy goes on without one, and takes nothing away: no file there is proved to
// be abandoned.
func TestCopyWithoutLocks(t *testing.T) {
	defer func(was func(*os.File) error) { tryLock = was }(tryLock)
	tryLock = func(*os.File) error { return syscall.ENOLCK }
	p := newPlace(t)
	left := filepath.Join(p.in, partialPrefix+strings.Repeat("A", 26))
	if err := os.WriteFile(left, []byte("half"), partialMode); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Unpacker{Root: p.root}).Unpack(stream(t, file("new", "x"))); err != nil {
		t.Errorf("copy: %v", err)
	}
	for _, path := range []string{left, filepath.Join(p.in, "new")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// A file that another copy takes away is made again under a new name: the other copy may remove its old name once more.
// A hard link that has no name yet is never taken away.
func TestNameIsNotUsedAgain(t *testing.T) {
	defer func(was func(*os.File) error) { tryLock = was }(tryLock)
	p := newPlace(t)
	var stolen string
	real := tryLock
	tryLock = func(f *os.File) error {
		if stolen == "" {
			stolen = filepath.Base(f.Name())
			return syscall.EWOULDBLOCK
		}
		return real(f)
	}
	f, name, err := create(p.root, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if name == stolen || !partialName.MatchString(name) {
		t.Errorf("the new name is %s, the old one %s", name, stolen)
	}
	if _, err := os.Lstat(filepath.Join(p.in, stolen)); err != nil {
		t.Errorf("a failed try removes a name that is another copy's: %v", err)
	}
	u := &Unpacker{Root: p.root}
	err = u.link("link", func(temp string) error {
		if partialName.MatchString(filepath.Base(temp)) {
			t.Errorf("a link under way is swept as %s", temp)
		}
		return p.root.Symlink("x", temp)
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

// Copies into one directory at once do not take each other's files away.
func TestCopiesAtOnce(t *testing.T) {
	p := newPlace(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				name := fmt.Sprintf("f%d-%d", i, j)
				if _, err := (&Unpacker{Root: p.root}).Unpack(stream(t, file(name, "content"))); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
	if names, err := os.ReadDir(p.in); err != nil || len(names) != 160 {
		t.Errorf("%d files, %v", len(names), err)
	}
}

// The guest swaps a directory for a link out of the root file system while a copy writes below it, again and again.
// Nothing outside changes, whether links are followed or not.
func TestDirectoryBecomesALinkDuringACopy(t *testing.T) {
	p := newPlace(t)
	sub, aside := filepath.Join(p.in, "sub"), filepath.Join(p.in, "aside")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			_ = os.Rename(sub, aside)
			_ = os.Symlink(p.out, sub)
			_ = os.Remove(sub)
			_ = os.Rename(aside, sub)
		}
	})
	for i := range 200 {
		u := &Unpacker{Root: p.root, Follow: i%2 == 0}
		_, _ = u.Unpack(stream(t, dir("sub"), file("sub/secret", "evil"), symlink("sub/l", "x"), file("sub/new", "y")))
	}
	close(over)
	swaps.Wait()
	p.outside(t)
}
