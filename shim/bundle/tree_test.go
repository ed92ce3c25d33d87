package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const secret = "only root may read this"

// swapped is a directory whose owner puts, again and again, something else in the place of
// what he has there.
func swapped(t *testing.T, other func(place string) error) (dir string, stop func()) {
	t.Helper()
	dir = t.TempDir()
	place, aside := filepath.Join(dir, "place"), filepath.Join(dir, ".aside")
	for _, err := range []error{
		os.Mkdir(place, 0o755), os.WriteFile(filepath.Join(place, "file"), []byte("public"), 0o644), other(aside),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var swapper sync.WaitGroup
	over := make(chan struct{})
	swapper.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, place, unix.AT_FDCWD, aside, unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	return dir, func() { close(over); swapper.Wait() }
}

// The owner of a directory that is copied may swap what is in it while root reads: a directory,
// a link, a pipe, a file. The owner gets no file of root's into the VM, and the copy does not
// hang.
func TestCopyOfWhatIsSwapped(t *testing.T) {
	vault := t.TempDir()
	if err := os.WriteFile(filepath.Join(vault, "file"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]func(string) error{
		"link to a directory": func(p string) error { return os.Symlink(vault, p) },
		"link to a file":      func(p string) error { return os.Symlink(filepath.Join(vault, "file"), p) },
		"pipe":                func(p string) error { return unix.Mkfifo(p, 0o644) },
		"file":                func(p string) error { return os.WriteFile(p, []byte("public"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, stop := swapped(t, other)
			defer stop()
			cs := Copies{{Source: dir, Destination: "/x"}}
			inner := Copies{{Source: filepath.Join(dir, "place"), Destination: "/x"},
				{Source: filepath.Join(dir, "place", "file"), Destination: "/y"}}
			for range 300 {
				for _, cs := range []Copies{cs, inner} {
					for r, err := range cs.Requests(t.Context()) {
						if err != nil {
							break // what is gone or a pipe ends the copy
						}
						for _, f := range r.GetFiles() {
							if strings.Contains(string(f.GetData()), secret) {
								t.Fatalf("%s is root's", f.GetPath())
							}
						}
					}
				}
				if data, err := inner[1].Read(100); strings.Contains(string(data), secret) {
					t.Fatalf("a file is root's, %v", err)
				}
			}
		})
	}
}

// What Read answers is a file's, at most as long as it may be; a pipe is not waited for.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "file"), []byte("12345"), 0o600), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("file", filepath.Join(dir, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string, limit int64) (string, error) {
		data, err := Copy{Source: filepath.Join(dir, name)}.Read(limit)
		return string(data), err
	}
	for _, c := range []struct {
		name  string
		limit int64
		want  string
	}{{"file", 5, "12345"}, {"file", 4, ""}, {"pipe", 5, ""}, {"", 5, ""}, {"link", 5, ""}} {
		if got, err := read(c.name, c.limit); err != nil || got != c.want {
			t.Errorf("%q of at most %d bytes: %q, %v", c.name, c.limit, got, err)
		}
	}
	if _, err := read("none", 5); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if _, err := read("link/x", 5); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "link", "x")) {
		t.Errorf("through a link: %v", err)
	}
}
