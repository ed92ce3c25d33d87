package statcache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// finder counts how often something had to be found.
type finder struct{ calls int }

func (f *finder) find(path string) func() (string, error) {
	return func() (string, error) {
		f.calls++
		data, err := os.ReadFile(path)
		return string(data), err
	}
}

func ask(t *testing.T, m Cache, f *finder, path string) string {
	t.Helper()
	value, err := m.Of("content", []string{path}, f.find(path))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// later is the time when what has just been written has settled.
func later() time.Time { return time.Now().Add(time.Hour) }

// What was found is found once, over processes, until the file changes in any way.
func TestFoundOnce(t *testing.T) {
	dir := t.TempDir()
	path, m, f := filepath.Join(dir, "kernel"), Cache{Path: filepath.Join(dir, "facts.json")}, &finder{}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if got := ask(t, m, f, path); got != "one" || f.calls != 1 {
		t.Fatalf("first: %q after %d calls", got, f.calls)
	}
	if ask(t, m, f, path); f.calls != 2 {
		t.Error("a file that has just changed was remembered")
	}
	m.Now = later
	ask(t, m, f, path)
	if got := ask(t, Cache{Path: m.Path}, f, path); got != "one" || f.calls != 3 {
		t.Errorf("settled: %q after %d calls, want 3", got, f.calls)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write("two") // as long, and dated back
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, m, f, path); got != "two" || f.calls != 4 {
		t.Errorf("changed: %q after %d calls, want 4", got, f.calls)
	}
}

// A damaged cache file, or none that can be written, costs time and nothing else; what cannot
// be found is an error.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	path, f := filepath.Join(dir, "kernel"), &finder{}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "{", "[]", `{"content ` + path + `":{}}`} {
		m := Cache{Path: filepath.Join(dir, "facts.json"), Now: later}
		if err := os.WriteFile(m.Path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, m, f, path); got != "x" {
			t.Errorf("cache file %q: %q", content, got)
		}
	}
	if got := ask(t, Cache{Path: filepath.Join(dir, "none", "facts.json")}, f, path); got != "x" {
		t.Errorf("cache without a directory: %q", got)
	}
	gone := filepath.Join(dir, "gone")
	if _, err := (Cache{Path: filepath.Join(dir, "facts.json")}).Of("content", []string{gone}, f.find(gone)); !errors.Is(
		err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
