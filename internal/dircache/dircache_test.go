package dircache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func name(i int) string { return fmt.Sprintf("%032x", i) }

// add makes entries of 100 bytes each, the first used longest ago.
func add(t *testing.T, c Cache, count int) {
	t.Helper()
	for i := range count {
		err := c.Add(name(i), func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "file"), make([]byte, 100), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-1000) * time.Minute)
		if err := os.Chtimes(c.Path(name(i)), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, c Cache) (all []string) {
	t.Helper()
	list, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		all = append(all, strings.TrimLeft(e.Name, "0"))
	}
	slices.Sort(all)
	return all
}

// Eviction keeps within both bounds those that were used last, and what is leased, and nothing
// that is not wanted.
func TestEvict(t *testing.T) {
	const many = 1 << 30
	for _, tt := range []struct {
		what   string
		bounds Bounds
		leased int // 0: none
		keep   func(string) bool
		want   []string
	}{
		{"within", Bounds{5, 500}, 0, nil, []string{"", "1", "2", "3", "4"}},
		{"count", Bounds{2, many}, 0, nil, []string{"3", "4"}},
		{"bytes", Bounds{5, 250}, 0, nil, []string{"3", "4"}},
		{"leased counts and stays", Bounds{2, many}, 1, nil, []string{"1", "4"}},
		{"unwanted", Bounds{5, many}, 0, func(n string) bool { return n == name(2) }, []string{"2"}},
		{"unwanted and leased", Bounds{5, many}, 3, func(n string) bool { return n == name(2) }, []string{"2", "3"}},
		{"none", Bounds{5, 50}, 0, nil, nil},
	} {
		t.Run(tt.what, func(t *testing.T) {
			c := Cache{t.TempDir()}
			add(t, c, 5)
			if err := os.Mkdir(c.Path("own-of-the-caller"), 0o700); err != nil {
				t.Fatal(err)
			}
			if tt.leased > 0 {
				l, err := c.Use(name(tt.leased))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			if err := c.Evict(tt.bounds, tt.keep); err != nil {
				t.Fatal(err)
			}
			if got := names(t, c); !slices.Equal(got, tt.want) {
				t.Errorf("left %q, want %q", got, tt.want)
			}
			if _, err := os.Stat(c.Path("own-of-the-caller")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A use counts: the entry that is used again goes last.
func TestUseIsNoted(t *testing.T) {
	c := Cache{t.TempDir()}
	add(t, c, 3)
	l, err := c.Use(name(0))
	if err == nil {
		err = errors.Join(l.Close(), c.Evict(Bounds{1, 1 << 30}, nil))
	}
	if got := names(t, c); err != nil || !slices.Equal(got, []string{""}) {
		t.Errorf("left %q, %v", got, err)
	}
	if _, err := c.Use(name(9)); !errdefs.IsNotFound(err) {
		t.Errorf("use of none: %v", err)
	}
}

// A maker that fails leaves nothing; what one that was killed has left goes with an eviction,
// and what a living one is about stays.
func TestLeftovers(t *testing.T) {
	c := Cache{filepath.Join(t.TempDir(), "cache")}
	failed := errors.New("failed")
	if err := c.Add(name(1), func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("add: %v", err)
	}
	if left, err := os.ReadDir(c.Dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := c.Add("../escape", func(string) error { return nil }); err == nil {
		t.Error("a name that leaves the directory was taken")
	}
	for _, crashed := range []string{".new-1", ".gone-1", "." + name(7)} { // the last is of the build before
		if err := os.Mkdir(c.Path(crashed), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := c.Add(name(2), func(dir string) error {
		err := c.Evict(Bounds{9, 1 << 30}, nil)
		if _, e := os.Stat(dir); e != nil {
			t.Errorf("what is being made was removed: %v", e)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(c.Path(".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// Who has leased an entry that is removed, or replaced, reads on in what it has open.
func TestRemoveTakesNothingAway(t *testing.T) {
	c := Cache{t.TempDir()}
	add(t, c, 1)
	f, err := os.Open(c.Path(name(0), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = c.Add(name(0), func(dir string) error { return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.Path(name(0), "new")); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Remove(name(0)), c.Remove(name(0))); err != nil {
		t.Fatal(err)
	}
	if n, err := f.ReadAt(make([]byte, 100), 0); n != 100 || err != nil {
		t.Errorf("read %d bytes of what was removed, %v", n, err)
	}
	if _, err := c.Use(name(0)); !errdefs.IsNotFound(err) {
		t.Errorf("use: %v", err)
	}
}

// Many who use, add and evict at once get a whole entry or none.
func TestTogether(t *testing.T) {
	c := Cache{t.TempDir()}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 50 {
				n := name(i % 3)
				err := c.Add(n, func(dir string) error { return os.WriteFile(filepath.Join(dir, "file"), []byte("whole"), 0o600) })
				if err != nil {
					if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
						t.Error(err)
					}
					continue
				}
				if l, err := c.Use(n); err == nil {
					if data, err := os.ReadFile(filepath.Join(l.Dir, "file")); err == nil && string(data) != "whole" {
						t.Errorf("%q", data)
					}
					l.Close()
				} else if !errdefs.IsNotFound(err) {
					t.Error(err)
				}
				if lock, err := c.Lock(); err == nil {
					if err := c.Evict(Bounds{1, 1 << 30}, nil); err != nil {
						t.Error(err)
					}
					lock.Close()
				} else if !errdefs.IsUnavailable(err) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left, _ := filepath.Glob(c.Path(".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// What is removed is gone, also while another process cleans up the leftovers of removals.
func TestRemoveDuringCleaning(t *testing.T) {
	c := Cache{t.TempDir()}
	over, cleaned := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cleaned)
		for {
			select {
			case <-over:
				return
			default:
				if err := c.clean(); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	defer func() { close(over); <-cleaned }()
	for range 300 {
		if err := os.Mkdir(c.Path(name(0)), 0o700); err != nil { // Add would have to win against the other process
			t.Fatal(err)
		}
		if err := c.Remove(name(0)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(c.Path(name(0))); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("an entry is there after its removal: %v", err)
		}
	}
}

// held keeps a lease of a process that is to be killed from being collected as garbage.
var held *Lease

// A lease ends with its process, however that ends.
func TestLeaseEndsWithItsProcess(t *testing.T) {
	if dir := os.Getenv("GODWIT_TEST_LEASE"); dir != "" {
		var err error
		if held, err = (Cache{dir}).Use(name(0)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("leased")
		for { // an empty select would end the process: a deadlock, as the runtime sees it
			time.Sleep(time.Hour)
		}
	}
	c := Cache{t.TempDir()}
	add(t, c, 1)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLeaseEndsWithItsProcess$")
	cmd.Env = append(os.Environ(), "GODWIT_TEST_LEASE="+c.Dir)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := c.Evict(Bounds{}, nil); err != nil || len(names(t, c)) != 1 {
		t.Errorf("a lease of another process: left %v, %v", names(t, c), err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := c.Evict(Bounds{}, nil); err != nil || len(names(t, c)) != 0 {
		t.Errorf("after its end: left %v, %v", names(t, c), err)
	}
}
