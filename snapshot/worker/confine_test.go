package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
)

// probe runs in a process of its own, which it confines, and says what is wrong with it.
func probe(layout, kept, secret string) (err error) {
	before, err := os.OpenFile(secret, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for range 4 { // rights are those of a thread
		go func() { runtime.LockOSThread(); select {} }()
	}
	shared := filepath.Join(filepath.Dir(kept), "shared")
	if err := confine(cache.NewDir(kept, shared, nil), store.Config{Repository: store.LayoutPrefix + layout}); err != nil {
		return err
	}
	if _, err := before.WriteAt([]byte("x"), 0); err != nil {
		return fmt.Errorf("a file that was given: %w", err)
	}
	if err := os.WriteFile(filepath.Join(layout, "blob"), nil, 0o600); err != nil {
		return fmt.Errorf("a file of the layout: %w", err)
	}
	cache.NewDir(kept, "", nil).Keep("blob", 1, store.Part{Data: []byte{1}})
	if _, err := os.Stat(filepath.Join(kept, "blob")); err != nil {
		return fmt.Errorf("what the node keeps: %w", err)
	}
	if _, err := os.ReadFile(filepath.Join(shared, "golden")); err != nil {
		return fmt.Errorf("what the node keeps for all: %w", err)
	}
	if abi, err := syscall.LandlockGetABIVersion(); err == nil && abi > 0 {
		for what, err := range map[string]error{
			"read": second(os.ReadFile(secret)), "write": os.WriteFile(secret+"2", nil, 0o600), "list": second(os.ReadDir("/")),
			"list another's":        second(os.ReadDir(filepath.Dir(kept))),
			"change what is shared": os.WriteFile(filepath.Join(shared, "golden"), nil, 0o600),
			"remove what is shared": os.Remove(filepath.Join(shared, "golden")),
			"link":                  os.Symlink("/", secret+"3"), "run": exec.Command("/bin/true").Run(),
		} {
			if !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("%s of another file: %v", what, err)
			}
		}
	}
	return outOfReach(secret)
}

// outOfReach asks for what the other programs of the host would give to root, and do to it.
func outOfReach(socket string) (wrong error) {
	var limit unix.Rlimit
	parent := os.Getppid()
	for what, err := range map[string]error{
		"reach a program by its socket": second(net.Dial("unix", socket+".sock")),
		"speak to guests":               second(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)),
		"end a process":                 unix.Kill(parent, 0), "end a group": unix.Kill(0, 0), "end all": unix.Kill(-1, 0),
		"end a thread":    unix.Tgkill(parent, parent, 0),
		"limit a process": unix.Prlimit(parent, unix.RLIMIT_NOFILE, nil, &limit),
	} {
		if !errors.Is(err, fs.ErrPermission) {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %v", what, err))
		}
	}
	if wrong != nil {
		return wrong
	}
	if err := errors.Join(unix.Kill(os.Getpid(), 0), unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit)); err != nil {
		return fmt.Errorf("its own process: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("reach a registry: %w", err)
	}
	return unix.Close(fd)
}

func second[T any](_ T, err error) error { return err }

// What reads foreign bytes has no rights left, in any thread. It reaches no file but those that it was given, and
// no program of the host.
func TestConfined(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	l, err := net.Listen("unix", secret+".sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(dir, "packs", "own")
	shared := filepath.Join(dir, "packs", "shared")
	for _, err := range []error{os.MkdirAll(kept, 0o700), os.MkdirAll(shared, 0o700),
		os.WriteFile(filepath.Join(shared, "golden"), []byte("x"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", filepath.Join(dir, "layout"), kept, secret)
	cmd.Env = append(os.Environ(), "GODWIT_TEST_WORKER=confined")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 4096)
	n, _ := out.Read(said)
	if string(said[:n]) != "confined\n" {
		t.Errorf("%s", said[:n])
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
	if err != nil || len(threads) < 4 {
		t.Errorf("%d threads, %v", len(threads), err)
	}
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{"NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n",
			"Seccomp:\t2\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s: no %q", path, want)
			}
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
