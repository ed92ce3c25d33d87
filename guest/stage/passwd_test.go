package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// HOME is what the container's passwd says, if that is a file: a fifo or a device there is not opened, and of a huge
// file the beginning is read.
func TestHome(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const line = "app:x:1000:1000::/home/app:/bin/sh\n"
	huge := strings.Repeat(fmt.Sprintf("u:x:1:1:%s:/:/\n", strings.Repeat("x", 1000)), 4<<10)
	for _, err := range []error{
		os.WriteFile(at("file"), []byte("root:x:0:0::/root:/bin/sh\n"+line+"b:x:1000:1000::/b:/bin/sh\n"), 0o600),
		os.Symlink("file", at("link")), unix.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("dir"), 0o700),
		os.WriteFile(at("early"), []byte(line+huge), 0o600), os.WriteFile(at("late"), []byte(huge+line), 0o600),
		unix.Mknod(at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))),
	} {
		if errors.Is(err, os.ErrPermission) {
			t.Skip("needs root")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	for name, want := range map[string]string{
		"file": "/home/app", "link": "/home/app", "early": "/home/app", "late": "/", "fifo": "/", "dir": "/",
		"device": "/", "none": "/",
	} {
		home := make(chan string, 1)
		go func() { home <- homeIn(proc, at(name), 1000) }()
		select {
		case got := <-home:
			if got != want {
				t.Errorf("%s: %q, not %q", name, got, want)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s is waited for", name)
		}
	}
}
