package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/filelock"
	"godwit.dev/godwit/vmm/kvm"
)

// listenEnv has the test binary be a daemon that listens on the socket which it names, or ends at once.
const listenEnv = "GODWIT_TEST_LISTEN"

func listenForever(socket string) {
	if socket == "ends" {
		fmt.Fprintln(os.Stderr, "no disk")
		os.Exit(1)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		os.Exit(1)
	}
	time.AfterFunc(time.Minute, func() { _ = l.Close() }) // it goes on after its starter, for a while
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(0)
		}
		_ = c.Close()
	}
}

// aHost is a host that lacks everything, in a directory of its own. ran are the programs that it has run.
func aHost(t *testing.T) (h *host, ran *[]string) {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.StateDir, cfg.RunDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	cfg.TLS.Key = filepath.Join(dir, "node.key")
	was, root := dropInFile, owner
	dropInFile, owner = filepath.Join(dir, "containerd", "conf.d", "godwit.toml"), uint32(os.Geteuid())
	t.Cleanup(func() { dropInFile, owner = was, root })
	ran = new([]string)
	for name, text := range map[string]string{"cpuinfo": "flags\t: fpu vmx sse\n", "proc/1/comm": "init\n"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return &host{cfg: cfg, systemd: filepath.Join(dir, "systemd"), logs: filepath.Join(dir, "log"),
		cpuinfo: filepath.Join(dir, "cpuinfo"), proc: filepath.Join(dir, "proc"), tun: filepath.Join(dir, "tun"),
		kvm: kvm.Host{Device: filepath.Join(dir, "kvm"), Modules: filepath.Join(dir, "modules")},
		run: func(_ context.Context, name string, args ...string) error {
			*ran = append(*ran, strings.Join(append([]string{name}, args...), " "))
			if name == "modprobe" {
				return os.MkdirAll(filepath.Join(dir, "modules", args[0]), 0o700)
			}
			return nil
		}}, ran
}

// look is doctor's look at the checks that have repairs.
func (h *host) look(checks ...string) func(context.Context) []finding {
	return func(context.Context) (all []finding) {
		for _, f := range append(checkFiles(h.cfg), checkKVM(h.kvm), checkDevice(tunCheck, h.tun),
			finding{Check: daemonCheck, OK: !silent(h.cfg.DaemonSocket())}) {
			for _, wanted := range checks {
				if f.Check == wanted {
					all = append(all, f)
				}
			}
		}
		return all
	}
}

// fixed runs the repairs of some checks and answers what was said.
func (h *host) fixed(t *testing.T, dry bool, checks ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	_, err := fix(t.Context(), &out, h.look(checks...), h, dry)
	return out.String(), err
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// Each repair does what it says, a dry run does not, and a second one finds nothing to do.
func TestRepairs(t *testing.T) {
	for check, c := range map[string]struct {
		before func(t *testing.T, h *host)
		says   string
		after  func(t *testing.T, h *host, ran []string) bool
	}{
		dirsCheck: {func(t *testing.T, h *host) {
			if err := errors.Join(os.Mkdir(h.cfg.StateDir, 0o700), os.Chmod(h.cfg.StateDir, 0o777)); err != nil {
				t.Fatal(err)
			}
		}, "/state and ", func(t *testing.T, h *host, _ []string) bool {
			return mode(t, h.cfg.StateDir) == 0o755 && mode(t, h.cfg.RunDir) == 0o711
		}},
		keysCheck: {func(t *testing.T, h *host) {
			if err := os.WriteFile(h.cfg.TLS.Key, []byte("key"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "node.key", func(t *testing.T, h *host, _ []string) bool { return mode(t, h.cfg.TLS.Key) == 0o600 }},
		dropInCheck: {func(t *testing.T, _ *host) {
			if err := os.Mkdir(filepath.Dir(filepath.Dir(dropInFile)), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "godwit.toml", func(t *testing.T, _ *host, _ []string) bool {
			text, err := os.ReadFile(dropInFile)
			return err == nil && strings.Contains(string(text), "io.containerd.godwit.v1") && mode(t, dropInFile) == 0o644
		}},
		kvmCheck: {func(t *testing.T, h *host) {
			if err := os.WriteFile(h.kvm.Device, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "kvm_intel", func(_ *testing.T, _ *host, ran []string) bool {
			return len(ran) == 1 && ran[0] == "modprobe kvm_intel"
		}},
	} {
		t.Run(check, func(t *testing.T) {
			h, ran := aHost(t)
			c.before(t, h)
			said, err := h.fixed(t, true, check)
			if err != nil || !strings.HasPrefix(said, "would: ") || !strings.Contains(said, c.says) || len(*ran) > 0 {
				t.Errorf("a dry run: %v, %v, %s", err, *ran, said)
			}
			if f := h.look(check)(t.Context())[0]; f.OK {
				t.Fatalf("a dry run has repaired it, or it was well: %+v", f)
			}
			if said, err = h.fixed(t, false, check); err != nil || !strings.HasPrefix(said, "done: ") ||
				!strings.Contains(said, c.says) || !c.after(t, h, *ran) {
				t.Errorf("%v, %v, %s", err, *ran, said)
			}
			if said, err = h.fixed(t, false, check); err != nil || said != "nothing is left to do by hand\n" {
				t.Errorf("a second time: %v, %s", err, said)
			}
		})
	}
}

// A repair that fails says why and what to type, the others go on, and the verb fails. What has no repair is left to
// the user, by its remedy.
func TestRepairThatFails(t *testing.T) {
	h, _ := aHost(t)
	h.run = func(context.Context, string, ...string) error { return errors.New("Operation not permitted") }
	h.cfg.StateDir = "/proc/self/fd/none/state" // no directory is made there, by root neither
	if err := os.WriteFile(h.cfg.TLS.Key, []byte("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	said, err := h.fixed(t, false, dirsCheck, keysCheck, tunCheck)
	for _, want := range []string{"failed: make ", "mkdir -p -m 0711 ", "done: keep others from",
		"failed: load the module tun: ", "Operation not permitted. To do it by hand: modprobe tun\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in:\n%s", want, said)
		}
	}
	if err == nil || exitCode(err) != 4 || !strings.Contains(err.Error(), "2 of 3 repairs failed") {
		t.Errorf("it ends with %v", err)
	}
	if err := os.WriteFile(h.cpuinfo, []byte("flags\t: fpu\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := h.fixed(t, false, kvmCheck); err != nil || !strings.HasPrefix(said, "by hand: kvm: load kvm_intel") {
		t.Errorf("a processor without virtualization: %v, %s", err, said)
	}
}

// On a file system that is read-only each repair of a file fails by itself, and says so.
func TestRepairsOnReadOnlyFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h, _ := aHost(t)
	dir := filepath.Dir(h.cfg.StateDir)
	err := errors.Join(os.WriteFile(h.cfg.TLS.Key, []byte("key"), 0o644),
		os.MkdirAll(filepath.Dir(filepath.Dir(dropInFile)), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread with its own mounts ends
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(dir, dir, "", unix.MS_BIND, ""),
			unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		var out strings.Builder
		if err == nil {
			_, err = fix(t.Context(), &out, h.look(dirsCheck, keysCheck, dropInCheck), h, false)
		}
		said <- fmt.Sprintf("%sends: %v", &out, err)
	}()
	if text := <-said; strings.Count(text, "read-only file system. To do it by hand: ") != 3 ||
		!strings.Contains(text, "ends: 3 of 3 repairs failed") {
		t.Error(text)
	}
}

// A daemon that does not run is started, and goes on; one that ends at once is told with its log.
func TestRepairStartsDaemon(t *testing.T) {
	h, ran := aHost(t)
	if err := os.MkdirAll(h.cfg.RunDir, 0o711); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(filepath.Dir(h.cfg.RunDir), "bin")
	self, err := os.Executable()
	if err = errors.Join(err, os.Mkdir(bin, 0o700), os.Symlink(self, filepath.Join(bin, "godwitd"))); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv(listenEnv, "ends")
	if said, err := h.fixed(t, false, daemonCheck); err == nil || !strings.Contains(said, "it has ended at once") ||
		!strings.Contains(said, "/log/godwitd.log") {
		t.Errorf("one that ends: %v, %s", err, said)
	}
	if log, err := os.ReadFile(filepath.Join(h.logs, "godwitd.log")); err != nil || string(log) != "no disk\n" {
		t.Errorf("its log: %q, %v", log, err)
	}
	t.Setenv(listenEnv, h.cfg.DaemonSocket())
	if said, err := h.fixed(t, false, daemonCheck); err != nil || !strings.HasPrefix(said, "done: start godwitd") {
		t.Errorf("%v, %s", err, said)
	}
	if said, err := h.fixed(t, false, daemonCheck); err != nil || strings.Contains(said, "start") || len(*ran) > 0 {
		t.Errorf("a second time: %v, %s, %v", err, said, *ran)
	}
}

// What may run is not started: where a socket answers or says nothing certain, where somebody has the daemon's lock,
// and where a containerd of somebody else is. systemd starts its own units.
func TestRepairStartsNothingTwice(t *testing.T) {
	h, ran := aHost(t)
	if err := os.MkdirAll(h.cfg.RunDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if r := h.startDaemon(); r == nil {
		t.Fatal("a daemon that has proven to be stopped is not started")
	}
	lock, err := os.Create(filepath.Join(h.cfg.RunDir, "godwitd.lock"))
	if err == nil {
		err = filelock.Lock(lock, unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := h.startDaemon(); r != nil {
		t.Errorf("its lock is held: %+v", r)
	}
	_ = lock.Close()
	l, err := net.Listen("unix", h.cfg.DaemonSocket())
	if err != nil {
		t.Fatal(err)
	}
	if r := h.startDaemon(); r != nil {
		t.Errorf("it listens: %+v", r)
	}
	_ = l.Close()
	if silent("/proc/self/mem/sock") {
		t.Error("an answer that proves nothing is taken for absence")
	}
	if err := os.WriteFile(filepath.Join(h.proc, "1", "comm"), []byte("containerd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.startContainerd(); r != nil {
		t.Errorf("a containerd runs: %+v", r)
	}
	if err := os.Mkdir(h.systemd, 0o700); err != nil {
		t.Fatal(err)
	}
	startTime = 100 * time.Millisecond
	defer func() { startTime = time.Minute }()
	said, err := h.fixed(t, false, daemonCheck)
	if err == nil || len(*ran) != 1 || (*ran)[0] != "systemctl start godwitd.service" ||
		!strings.Contains(said, "does not answer") || !strings.Contains(said, "systemctl enable --now godwitd") {
		t.Errorf("%v, %v, %s", err, *ran, said)
	}
	t.Setenv("GODWIT_CONFIG", "/other.toml")
	if r := h.startDaemon(); r != nil {
		t.Errorf("the unit has another configuration: %+v", r)
	}
}
