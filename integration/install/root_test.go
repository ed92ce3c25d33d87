//go:build integration

// Package install tests what a machine gets: the Debian package, installed, upgraded, removed
// and purged, `make install`, and programs of the release before together with ours.
package install

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// root is a copy of this machine's root file system, without what is mounted on it, that
// begins as the machine is: dpkg and the packages that ours depends on are real, and what
// an installation changes lies apart. No service manager runs in it.
type root struct {
	pid        int
	namespaces []string // of its own, in addition to pids and mounts, as nsenter names them
}

// rootScript is process 1 of the root. All is gone with it. What this machine's
// administrator told dpkg to leave out is not left out here.
const rootScript = `
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=0755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /dev /mnt/root/dev
mount -t tmpfs -o mode=0755 tmpfs /mnt/root/run
mount -t tmpfs -o mode=1777 tmpfs /mnt/root/tmp
mkdir -p /mnt/root/etc/dpkg/dpkg.cfg.d
for f in /mnt/root/etc/dpkg/dpkg.cfg.d/*; do rm -f "$f"; done
rm -f /mnt/root/var/lib/man-db/auto-update # man needs no index to find a page
echo ready
exec sleep infinity
`

func newRoot(t *testing.T) *root {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", rootScript)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a root of its own (root needed): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("make a root: it says %q: %v", line, err)
	}
	r := &root{pid: cmd.Process.Pid}
	if said, err := r.try("dpkg-query", "-W", "godwit"); err == nil {
		t.Fatalf("godwit is installed on this machine, which is no clean root then: %s", said)
	}
	return r
}

// path of a file in the root, as this process reaches it.
func (r *root) path(name string) string {
	return filepath.Join("/proc", fmt.Sprint(r.pid), "root/mnt/root", name)
}

// try runs a command in the root, as after a login, and answers all that it said.
func (r *root) try(args ...string) (string, error) {
	inside := append([]string{"--target", fmt.Sprint(r.pid), "--mount", "--pid"}, r.namespaces...)
	inside = append(inside, "chroot", "/mnt/root",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root",
		"DEBIAN_FRONTEND=noninteractive")
	out, err := exec.Command("nsenter", append(inside, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (r *root) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// dpkg installs a package file of ours, which lies outside.
func (r *root) install(t *testing.T, deb string) {
	t.Helper()
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path("/tmp/godwit.deb"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	r.run(t, "dpkg", "--install", "/tmp/godwit.deb")
}

func (r *root) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *root) has(name string) bool {
	_, err := os.Lstat(r.path(name))
	return err == nil
}

// changed lists what differs from the machine, less what dpkg, man and the test itself
// keep about it.
func (r *root) changed(t *testing.T) []string {
	t.Helper()
	upper := filepath.Join("/proc", fmt.Sprint(r.pid), "root/mnt/upper")
	own := []string{
		"etc/dpkg/dpkg.cfg.d/", "var/lib/dpkg/", "var/log/dpkg.log", "var/cache/man/", "var/lib/man-db/",
		"var/cache/debconf/", "var/lib/systemd/catalog/", "var/cache/ldconfig/",
	}
	var all []string
	err := filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(upper, path)
		if err != nil || d.IsDir() && !empty(path) || slices.ContainsFunc(own, func(o string) bool {
			return strings.HasPrefix(name+"/", o)
		}) {
			return err
		}
		if _, err := os.Lstat("/" + name); err == nil && d.IsDir() {
			return nil // the machine's own, looked into
		}
		all = append(all, "/"+name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func empty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// command runs a program on the machine itself.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String()
}
