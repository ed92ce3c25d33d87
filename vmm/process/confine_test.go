package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// user is a number that no user has.
const user = 0x7ffe0000

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// confined starts a shell script that says "up" when it has done its part and then does the rest, for ever if that is
// empty. It answers once the script has said it, with all that it said.
func confined(t *testing.T, l Launch, script, rest string) (*Process, string) {
	t.Helper()
	if rest == "" {
		waits, never, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer waits.Close()
		t.Cleanup(func() { never.Close() })
		l.FDs = append(slices.Clone(l.FDs), int(waits.Fd()))
		rest = fmt.Sprintf("read line <&%d", FirstFD+len(l.FDs)-1)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l.Args, l.Out, l.Confined = []string{"/bin/sh", "-c", script + "\necho up\n" + rest}, w, true
	p, err := launch(t, l)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	for buf := make([]byte, 4096); !strings.HasSuffix(said.String(), "up\n"); {
		n, err := r.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v; it said %q", err, said.String())
		}
	}
	return p, said.String()
}

// status answers the lines of /proc/PID/status that have those names.
func status(t *testing.T, pid int, names ...string) (lines []string) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains(names, name) {
			lines = append(lines, name+" "+strings.Join(strings.Fields(value), " "))
		}
	}
	return lines
}

// Whatever user it runs as, root too, a process that was started has no capability. It has no set from which one could
// come, and no way to new ones. A capability that the caller would hand down is not.
func TestNoRights(t *testing.T) {
	needRoot(t)
	for _, u := range []User{{}, {ID: user}} {
		for _, isConfined := range []bool{false, true} {
			p, err := launch(t, Launch{Args: []string{"/bin/sleep", "600"}, User: u, Confined: isConfined})
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", u.ID)
			const none = " 0000000000000000"
			want := []string{"Uid " + id, "Gid " + id, "CapInh" + none, "CapPrm" + none, "CapEff" + none, "CapBnd" + none,
				"CapAmb" + none, "NoNewPrivs 1"}
			if got := status(t, p.PID, "Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
				"NoNewPrivs"); !slices.Equal(got, want) {
				t.Errorf("user %d, confined %v: %q", u.ID, isConfined, got)
			}
		}
	}
}

// A confined process is process 1, sees no node in /dev but its own, and reaches a device that is for root alone. Once
// it is sealed, it has an empty root that cannot be written to.
func TestSeal(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip("needs the node /dev/kvm:", err)
	}
	p, said := confined(t, Launch{User: User{ID: user}, Device: "/dev/kvm"},
		"echo pid $$\nls /dev\nls -ln /dev/kvm\n(: <>/dev/kvm) && echo opened", "")
	for _, want := range []string{"pid 1\n", "kvm\nnull\nrandom\nurandom\nzero\n", fmt.Sprintf("crw------- 1 %[1]d %[1]d",
		user), "opened\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", p.PID)
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("its root has %v, %v", entries, err)
	}
	if err := os.Mkdir(root+"/d", 0o700); !errors.Is(err, unix.EROFS) {
		t.Errorf("its root can be written to: %v", err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", p.PID))
	if err != nil || bytes.Count(mounts, []byte("\n")) != 1 {
		t.Errorf("it has the mounts %s, %v", mounts, err)
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID)); cwd != "/" {
		t.Errorf("its directory is %q, %v", cwd, err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Errorf("the host's own /dev: %v", err)
	}
}

// What is kept of a sealed process's files is its own nodes and a /proc in which it finds its descriptors and no other
// process.
func TestSealKeeps(t *testing.T) {
	needRoot(t)
	waits, lets, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer lets.Close()
	waits.Fd() // blocking: a shell reads from it
	files := &Files{}
	defer files.Close()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, f := range []*os.File{waits, file, w} {
		if _, err := files.Pass(f); err != nil {
			t.Fatal(err)
		}
	}
	// What the shell does itself after it was sealed: it has no programs then.
	p, _ := confined(t, Launch{User: User{ID: user}, FDs: files.FDs()},
		"", "read line <&3; read line </proc/self/fd/4; echo $line /* /dev/* /proc/[0-9]* >&5")
	w.Close()
	waits.Close()
	files.Close()
	if err := p.Seal("/dev", "/proc"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"d", "dev/d"} {
		if err := os.Mkdir(fmt.Sprintf("/proc/%d/root/%s", p.PID, path), 0o700); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be made: %v", path, err)
		}
	}
	if _, err := lets.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := r.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(buf[:n]))
	want := []string{"content", "/dev", "/proc", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"}
	if len(words) < len(want) || !slices.Equal(words[:len(want)], want) || slices.Contains(words, "/proc/1") {
		t.Errorf("it sees %q", buf[:n])
	}
}

// A VMM whose RAM is root's is refused with both remedies, and starts where root is allowed.
func TestOwner(t *testing.T) {
	needRoot(t)
	ram, err := os.Create(filepath.Join(t.TempDir(), "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	_, err = Owner(ram, false)
	if !errdefs.IsFailedPrecondition(err) || !errors.Is(err, ErrRoot) ||
		!strings.Contains(err.Error(), "vmm.first_user") || !strings.Contains(err.Error(), "vmm.allow_root") {
		t.Errorf("RAM of root's: %v", err)
	}
	if u, err := Owner(ram, true); err != nil || u.ID != 0 {
		t.Errorf("allowed: %v, %v", u, err)
	}
	if err := ram.Chown(user, -1); err != nil {
		t.Fatal(err)
	}
	if u, err := Owner(ram, false); err != nil || u.ID != user {
		t.Errorf("RAM of a user: %v, %v", u, err)
	}
}

// reopens has a process of the user's open the files anew, the last ones for writing, and
// answers what it could not.
func reopens(t *testing.T, u User, file *os.File, mode string) string {
	t.Helper()
	return reopensAs(t, u, file, mode != "<", mode)
}

func reopensAs(t *testing.T, u User, file *os.File, write bool, mode string) string {
	t.Helper()
	private, err := u.Private(file, write)
	if err != nil {
		t.Fatal(err)
	}
	if private != file {
		defer private.Close()
	}
	files := &Files{}
	defer files.Close()
	if _, err := files.Pass(private); err != nil {
		t.Fatal(err)
	}
	_, said := confined(t, Launch{User: u, FDs: files.FDs()}, "chmod u+w /proc/self/fd/3 2>/dev/null; (: "+mode+
		"/proc/self/fd/3) 2>&1 && echo opened", "")
	return said
}

// loopOf makes a loop device of the file at path, for the time of the test.
func loopOf(t *testing.T, path string) *os.File {
	t.Helper()
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Fatalf("make a loop device: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", loop).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	device, err := os.OpenFile(loop, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() }) // before it is detached
	return device
}

// A layer that is for root alone, a disk that is a device and a file that is to be written: each
// is opened again by a user who has no rights on it, and what belongs to others stays as it was.
func TestPrivate(t *testing.T) {
	needRoot(t)
	u, dir := User{ID: user}, t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer")
	if err := os.WriteFile(layer, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if said := reopens(t, u, file, "<"); !strings.Contains(said, "opened") {
		t.Errorf("a layer for root alone: %q", said)
	}
	info, err := stat(file)
	if err != nil || info.Uid != 0 || info.Mode&0o777 != 0o600 {
		t.Errorf("the layer has changed: %+v, %v", info, err)
	}
	if said := reopens(t, User{ID: user + 1}, file, ">>"); !strings.Contains(said, "opened") {
		t.Errorf("a file of its own: %q", said)
	}

	device := loopOf(t, layer)
	before, err := stat(device)
	if err != nil {
		t.Fatal(err)
	}
	if said := reopens(t, u, device, "<>"); !strings.Contains(said, "opened") {
		t.Errorf("a disk that is a device: %q", said)
	}
	for _, mode := range []string{"<", ">"} {
		if said := reopensAs(t, u, device, false, mode); strings.Contains(said, "opened") != (mode == "<") {
			t.Errorf("a device that is to be read alone, opened with %s: %q", mode, said)
		}
	}
	if after, err := stat(device); err != nil || after.Uid != before.Uid || after.Mode != before.Mode {
		t.Errorf("the host's node has changed: %+v, %v", after, err)
	}
}
