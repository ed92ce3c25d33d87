//go:build integration

package move

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// holdFillPacks holds the packs that the fill of a VM that runs on a node reads whole. What the VM waits for passes,
// and so does what its disks consist of.
func holdFillPacks(h *harness.Harness, n *harness.Node) (held <-chan struct{}, open func()) {
	return h.Door.Hold(func(r *http.Request) bool {
		_, digest, _ := strings.Cut(r.URL.Path, "/blobs/")
		if r.Method != http.MethodGet || r.Header.Get("Range") != "" || !strings.HasPrefix(digest, "sha256:") {
			return false
		}
		st, err := os.Stat(h.Blob(digest))
		return err == nil && st.Size() > 4<<20 && journal(n, vm).Phase != "INCOMING" // no index is as large
	})
}

// holdPacks holds whatever a node wants of packs from now on. The VM waits once it wants something.
func holdPacks(h *harness.Harness) (wanted <-chan struct{}, over func()) {
	reached := make(chan struct{})
	first := sync.OnceFunc(func() { close(reached) })
	_, over = h.Door.Hold(func(r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		if r.Header.Get("Range") != "" {
			first()
		}
		return true
	})
	return reached, over
}

// sum is what the guest makes of a file in its memory that no snapshot can compress.
func sum(t *testing.T, n *harness.Node, id string) string {
	t.Helper()
	out := n.Ctr(t, "task", "exec", "--exec-id", id, vm, "/bin/busybox", "sha256sum", "/dev/shm/noise")
	if len(out) < 64 {
		t.Fatalf("sum of the guest's memory: %q", out)
	}
	return out[:64]
}

// restoring is what godwit ps says of the restore.
func restoring(t *testing.T, n *harness.Node) string {
	t.Helper()
	_, rest, _ := strings.Cut(n.Godwit(t, "ps", "-o", "wide"), "restore: ")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

func awaitRestore(t *testing.T, n *harness.Node, what string, ok func(string) bool) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if now := restoring(t, n); !ok(now) {
			return fmt.Errorf("%s: restore is %q", what, now)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fillers are the processes that bring RAM on a node: the workers of its shims.
func fillers(n *harness.Node) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		line, _ := os.ReadFile(path)
		if !strings.HasSuffix(string(line), "\x00worker\x00") {
			continue
		}
		var pid, parent int
		_, _ = fmt.Sscanf(path, "/proc/%d/", &pid)
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(stat), ") ")
		_, _ = fmt.Sscanf(rest, "%1s %d", new(string), &parent)
		shim, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parent))
		if strings.Contains(string(shim), n.Dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// forget has a node keep no packs.
func forget(t *testing.T, n *harness.Node) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(n.Dir, "lib", "cache", "packs")); err != nil {
		t.Fatal(err)
	}
}

// await is a receive that does not wait for ever.
func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(bound):
		t.Fatal("the fill asks for no pack")
	}
}

// A VM runs while its RAM comes: its memory is what it was, whatever dies meanwhile, and the next
// hibernate sends what changed.
func TestLazyRestore(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(n *harness.Node) string {
			if n.Name == "b" {
				return "[worker]\nrestore = \"lazy\"\n"
			}
			return "[worker]\nrestore = \"auto\"\n"
		}})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	address := boot(t, a, watch).From
	a.Ctr(t, "task", "exec", "--exec-id", "noise", vm, "/bin/busybox", "dd", "if=/dev/urandom", "of=/dev/shm/noise",
		"bs=1M", "count=24")
	want, before := sum(t, a, "before"), ask(t, h, address)
	first, full := take(t, a, "hibernate", vm)

	same := func(t *testing.T, n *harness.Node, id string) {
		t.Helper()
		if got := sum(t, n, id); got != want {
			t.Errorf("%s: the guest's memory is another: %s, was %s", id, got, want)
		}
		now := ask(t, h, address)
		if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
			now.Counter <= before.Counter {
			t.Errorf("%s: the VM is another one: %+v, was %+v", id, now, before)
		}
	}
	run := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			t.FailNow()
		}
	}
	run("runs while it comes", func(t *testing.T) {
		held, open := holdFillPacks(h, b)
		defer open()
		b.Godwit(t, "wake", "--on", b.Name, vm)
		await(t, held)
		if now := restoring(t, b); !strings.HasPrefix(now, "lazy, ") {
			t.Fatalf("restore is %q, and nothing was let through", now)
		}
		ask(t, h, address)
		b.Ctr(t, "task", "pause", vm)
		b.Ctr(t, "task", "resume", vm)
		refused(t, b, "the VM runs from it", "snapshot", "rm", first.Operation.Digest)

		pids := fillers(b)
		if len(pids) != 1 {
			t.Fatalf("%d processes bring RAM", len(pids))
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := harness.Poll(t.Context(), bound, func(context.Context) error {
			if now := fillers(b); len(now) != 1 || now[0] == pids[0] {
				return fmt.Errorf("RAM is brought by %v", now)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ask(t, h, address)

		if err := h.Unplug(); err != nil {
			t.Fatal(err)
		}
		awaitRestore(t, b, "the registry is gone", func(s string) bool { return strings.Contains(s, "waits") })
		if err := h.Plug(); err != nil {
			t.Fatal(err)
		}
		open()
		awaitRestore(t, b, "the registry is back", func(s string) bool { return s == "" })
		same(t, b, "lazily")
		if out := b.Godwit(t, "ps", "-o", "wide"); !strings.Contains(out, "lazy (worker.restore)") {
			t.Errorf("how it was restored is not told: %s", out)
		}
		if len(fillers(b)) > 0 {
			t.Error("RAM is brought on")
		}
	})
	run("then sleeps and wakes", func(t *testing.T) {
		second, pushed := take(t, b, "hibernate", vm)
		if second.Figures.Tracking != "uffd" || pushed*4 > full {
			t.Errorf("by %s: %d bytes pushed, %d at first", second.Figures.Tracking, pushed, full)
		}
		a.Godwit(t, "wake", "--on", a.Name, vm)
		same(t, a, "eagerly")
		// The VM has the 24 MiB of noise and its guest's own, less than what lazy is worth.
		_, rest, _ := strings.Cut(a.Godwit(t, "ps", "-o", "wide"), "eager (auto: ")
		var mib int
		if _, err := fmt.Sscanf(rest, "%d MiB of RAM, fewer than 256)", &mib); err != nil || mib < 24 || mib >= 256 {
			t.Errorf("by auto: %q: %d MiB, %v", rest, mib, err)
		}
	})
	run("an operation waits", func(t *testing.T) {
		a.Godwit(t, "hibernate", vm)
		held, open := holdFillPacks(h, b)
		defer open()
		forget(t, b)
		b.Godwit(t, "wake", "--on", b.Name, vm)
		await(t, held)
		slept := make(chan error, 1)
		go func() {
			_, err := b.RunGodwit(t.Context(), "hibernate", vm)
			slept <- err
		}()
		for range 3 {
			if now := restoring(t, b); !strings.HasPrefix(now, "lazy, ") {
				t.Errorf("restore is %q", now)
			}
			ask(t, h, address)
		}
		select {
		case err := <-slept:
			t.Errorf("half a VM was put to sleep: %v", err)
		default:
		}
		open()
		if err := <-slept; err != nil {
			t.Fatal(err)
		}
	})
	run("ends while it waits", func(t *testing.T) {
		forget(t, b)
		held, open := holdFillPacks(h, b)
		defer open()
		b.Godwit(t, "wake", "--on", b.Name, vm)
		await(t, held)
		if now := restoring(t, b); !strings.HasPrefix(now, "lazy, ") {
			t.Errorf("restore is %q", now)
		}
		wanted, over := holdPacks(h)
		defer over()
		read := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			_, err := b.RunCtr(ctx, "task", "exec", "--exec-id", "thirst", vm, "/bin/busybox", "sha256sum", "/dev/shm/noise")
			read <- err
		}()
		await(t, wanted)
		b.Ctr(t, "task", "kill", "--signal", "KILL", vm)
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			_, _ = b.RunCtr(ctx, "task", "rm", vm) // godwitd does so, too
			out, err := b.RunCtr(ctx, "tasks", "ls")
			if err == nil && strings.Contains(out, vm) {
				err = fmt.Errorf("the task is there: %s", out)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-read; err == nil {
			t.Error("the guest has read memory that never came")
		}
		if out := b.Godwit(t, "snapshot", "ls", vm); strings.Count(out, vm) == 0 {
			t.Errorf("the snapshot is gone: %s", out)
		}
	})
	for _, n := range []*harness.Node{a, b} {
		if _, err := n.RunCtr(t.Context(), "container", "rm", vm); err != nil && !errors.As(err, new(*harness.RunError)) {
			t.Error(err)
		}
	}
	a.Godwit(t, "rm", vm, "--force")
}
