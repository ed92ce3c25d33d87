package config

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The sockets of channels fit the bound of names, and those that were left are found, with that of the release before.
func TestPagesSockets(t *testing.T) {
	dir, err := os.MkdirTemp("", "ps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &Config{RunDir: dir}
	first, err := c.PagesSocket(c.PagesChannel("ns", "vm", strings.Repeat("0a", 16)))
	if err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(first); len(name) > socketName {
		t.Errorf("%q has %d bytes", name, len(name))
	}
	if err := os.MkdirAll(filepath.Dir(first), 0o700); err != nil {
		t.Fatal(err)
	}
	want := []string{first, filepath.Join(filepath.Dir(first), "pages.sock")}
	for _, path := range append(slices.Clone(want), filepath.Join(filepath.Dir(first), "machine.sock")) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if got, err := c.PagesSockets("ns", "vm"); err != nil || !slices.Equal(got, want) {
		t.Errorf("sockets are %v, %v; want %v", got, err, want)
	}
	slash := strings.Repeat("0a", 8) + "/" + strings.Repeat("0a", 16)
	for _, bad := range []string{"", "../x", "0123456789abcdef-0a", slash} {
		if path, err := c.LivePagesSocket(bad); err == nil {
			t.Errorf("channel %q is at %s", bad, path)
		}
	}
}
