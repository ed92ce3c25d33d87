//go:build integration

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	contentstore "github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// taken is what godwit says of an operation that made a snapshot.
type taken struct {
	Operation struct{ Digest, Note string }
	Figures   struct {
		PauseMs     float64 `json:"pauseMs"`
		PushedBytes uint64  `json:"pushedBytes"`
		Tracking    string  `json:"tracking"`
		Notes       []string
		Passes      []struct {
			Looked json.Number `json:"lookedBytes"`
		}
	}
}

func take(t *testing.T, n *harness.Node, args ...string) (r taken, pushed uint64) {
	t.Helper()
	out := n.Godwit(t, append([]string{"-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pushed = r.Figures.PushedBytes
	t.Logf("%v: paused %.1f ms (%s), pushed %d", args, r.Figures.PauseMs, r.Figures.Tracking, pushed)
	return r, pushed
}

// looked is how many bytes of RAM the first pass looked at.
func (r *taken) looked(t *testing.T) int64 {
	t.Helper()
	if len(r.Figures.Passes) == 0 {
		t.Fatal("the figures have no passes")
	}
	n, err := r.Figures.Passes[0].Looked.Int64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// clones reports whether the file system of the nodes clones files.
func clones(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	from, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
}

// A VM goes on while its checkpoint is sent, and what comes after refers to it. It is restored by order only, on
// another node after its own was lost, and over a newer state. A process of an exec goes on after it, and ends
// where it is restored: no client has it there. Its workload is asked first, and hears of each snapshot and each
// restore once.
func TestCheckpoint(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string {
			return "[retention]\nkeep = 4\n"
		}})
	a, b := h.Node(0), h.Node(1)
	watch := listen(t, h)
	address := boot(t, a, watch, "--annotation", "godwit.dev/ready="+readyFile, "--annotation",
		"godwit.dev/notify="+hookFile).From
	booted := ask(t, h, address)
	signs(t, a)

	var first, second taken
	var full uint64
	var before, then images.ProbeState
	t.Run("goes on", func(t *testing.T) {
		a.Ctr(t, "task", "exec", "--detach", "--exec-id", "caught", vm, "/bin/busybox", "sleep", caught)
		reached, open := holdManifest(h)
		a.Godwit(t, "checkpoint", "--detach", "--operation", "c1", "--name", "before-upgrade", "--pin", vm)
		<-reached // all of it has been read: its manifest is on the way
		watch.Mark("sent")
		after(t, watch, "sent")
		open()
		first, full = take(t, a, "checkpoint", "--operation", "c1", vm)
		if now := ask(t, h, address); now.Nonce != booted.Nonce || !now.FileOK {
			t.Errorf("the VM is another one: %+v", now)
		}
		if !runs(t, a, caught) {
			t.Error("a checkpoint ended a process of an exec")
		}
		a.Ctr(t, "task", "kill", "--exec-id", "caught", "--signal", "KILL", vm)
		if out := a.Godwit(t, "snapshot", "ls", "-o", "wide", vm); !strings.Contains(out, first.Operation.Digest) ||
			!strings.Contains(out, "before-upgrade") {
			t.Errorf("snapshot ls: %s", out)
		}
		if doubles, back := watch.Twice(); doubles != 0 || back != 0 {
			t.Errorf("%d beacons came twice, %d went back", doubles, back)
		}
		hears(t, a, "snapshotted "+first.Operation.Digest)
		if n := strings.Count(guestFile(t, a, askedFile), "asked"); n != askedBefore {
			t.Errorf("it was asked %d times whether it is ready", n)
		}
	})
	var slept taken
	t.Run("the next ones are small", func(t *testing.T) {
		var pushed uint64
		if slept, pushed = take(t, a, "hibernate", vm); pushed*4 > full {
			t.Errorf("a hibernate after a checkpoint pushed %d bytes, the checkpoint %d", pushed, full)
		}
		b.Godwit(t, "wake", "--on", b.Name, vm)
		hears(t, b, "snapshotted "+first.Operation.Digest, "snapshotted "+slept.Operation.Digest,
			"restored "+slept.Operation.Digest)
		before = ask(t, h, address)
		second, pushed = take(t, b, "checkpoint", "--pause-budget", "0", vm)
		if said := strings.Contains(strings.Join(second.Figures.Notes, "\n"), "has no reflink"); said == clones(t) {
			t.Errorf("disks can be cloned here: %v, and it is told: %q", clones(t), second.Figures.Notes)
		}
		then = ask(t, h, address)
		if pushed*4 > full {
			t.Errorf("a checkpoint after a wake pushed %d bytes, the first %d", pushed, full)
		}
	})
	t.Run("elsewhere, and paused", func(t *testing.T) {
		if _, err := a.RunGodwit(t.Context(), "checkpoint", vm); err == nil || !strings.Contains(err.Error(), "node b") {
			t.Errorf("of a VM that another node owns: %v", err)
		}
		b.Ctr(t, "task", "pause", vm)
		if _, err := b.RunGodwit(t.Context(), "checkpoint", vm); err == nil || !strings.Contains(err.Error(), "paused") {
			t.Errorf("of a paused task: %v", err)
		}
		b.Ctr(t, "task", "resume", vm)
	})
	t.Run("its node is lost", func(t *testing.T) {
		if _, err := a.RunGodwit(t.Context(), "wake", "--on", a.Name, "--digest", second.Operation.Digest, "--force",
			vm); err == nil {
			t.Error("a VM that runs was woken elsewhere")
		}
		lose(t, b)
		latest := watch.Latest().Counter
		watch.Mark("wake")
		out := a.Godwit(t, "wake", "--lost-node", "b", vm)
		if !strings.Contains(out, "is given up with that node") {
			t.Errorf("it does not say what is given up: %s", out)
		}
		woken := after(t, watch, "wake")
		now := ask(t, h, woken.From)
		if now.Nonce != booted.Nonce || now.BootID != booted.BootID || now.PID != booted.PID || !now.FileOK {
			t.Errorf("the VM is another one: %+v, was %+v", now, booted)
		}
		if woken.Counter <= before.Counter || woken.Counter > then.Counter+1 || woken.Counter >= latest {
			t.Errorf("it goes on at %d; the checkpoint was between %d and %d, the node was lost at %d", woken.Counter,
				before.Counter, then.Counter, latest)
		}
		hears(t, a, "snapshotted "+first.Operation.Digest, "snapshotted "+slept.Operation.Digest,
			"restored "+slept.Operation.Digest,
			"snapshotted "+second.Operation.Digest, "restored "+second.Operation.Digest)
	})
	t.Run("over a newer state", func(t *testing.T) {
		newer, _ := take(t, a, "hibernate", vm)
		if _, err := a.RunGodwit(t.Context(), "checkpoint", vm); err == nil ||
			!strings.Contains(err.Error(), vm+" sleeps") {
			t.Errorf("checkpoint of a VM that sleeps: %v", err)
		}
		if _, err := a.RunGodwit(t.Context(), "wake", "--on", a.Name, "--digest", first.Operation.Digest, vm); err == nil {
			t.Error("an older state was restored without force")
		}
		if out, err := a.RunGodwit(t.Context(), "snapshot", "rm", "before-upgrade"); err == nil ||
			!strings.Contains(err.Error(), "godwit snapshot unpin") {
			t.Errorf("a pinned snapshot was deleted: %s, %v", out, err)
		}
		watch.Mark("back")
		if out := a.Godwit(t, "wake", "--on", a.Name, "--from", "before-upgrade", vm); !strings.Contains(
			out, newer.Operation.Digest) {
			t.Errorf("it does not name the newer state: %s", out)
		}
		if back := after(t, watch, "back"); back.Nonce != booted.Nonce || back.Counter > before.Counter {
			t.Errorf("goes on at %d, the checkpoint was before %d", back.Counter, before.Counter)
		}
		if runs(t, a, caught) {
			t.Error("a process runs on that belongs to no exec: the checkpoint had caught it")
		}
		hears(t, a, "snapshotted "+first.Operation.Digest, "restored "+first.Operation.Digest)
		next, _ := take(t, a, "checkpoint", vm)
		history(t, a, map[string]string{first.Operation.Digest: "", slept.Operation.Digest: first.Operation.Digest,
			second.Operation.Digest: slept.Operation.Digest, newer.Operation.Digest: second.Operation.Digest,
			next.Operation.Digest: first.Operation.Digest})
	})
	t.Run("by themselves", func(t *testing.T) { scheduled(t, a, watch) })
	t.Run("a final one", func(t *testing.T) { finalSnapshot(t, h, a, watch) })
	remove(t, a, vm)
	t.Run("containerd's own", func(t *testing.T) { ofContainerd(t, a) })
}

// history shows which snapshot came from which, with the line that was left set in.
func history(t *testing.T, n *harness.Node, want map[string]string) {
	t.Helper()
	var all struct {
		Snapshots []struct {
			Digest, Parent string
			NewBytes       uint64
		}
	}
	if err := json.Unmarshal([]byte(n.Godwit(t, "snapshot", "history", "-o", "json", vm)), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range all.Snapshots {
		if got[s.Digest] = s.Parent; s.NewBytes == 0 {
			t.Errorf("%s has sent nothing", s.Digest)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("parents %v, want %v", got, want)
	}
	out := n.Godwit(t, "snapshot", "history", vm)
	if !strings.Contains(out, "before-upgrade") || strings.Count(out, "| * ") != 3 || !strings.Contains(out, "pinned") {
		t.Errorf("history:\n%s", out)
	}
	t.Log(out)
}

// caught is how long a process sleeps that a checkpoint catches: ps knows it by that.
const caught = "77777"

// runs reports whether a process of the guest has the word in its command line.
func runs(t *testing.T, n *harness.Node, word string) bool {
	t.Helper()
	return strings.Contains(n.Ctr(t, "task", "exec", "--exec-id", "ps", vm, "/bin/busybox", "ps", "-o", "args"), word)
}

// scheduled has the VM's node take checkpoints by itself: the VM goes on, the newest of them
// stays, and it ends when it is told to.
func scheduled(t *testing.T, n *harness.Node, watch *observer.Watcher) {
	checkpoints := func() (digests []string) {
		t.Helper()
		var list struct {
			Snapshots []struct {
				Digest     string
				Checkpoint bool
			}
		}
		out := n.Godwit(t, "snapshot", "ls", "-o", "json", vm)
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, s := range list.Snapshots {
			if s.Checkpoint {
				digests = append(digests, s.Digest)
			}
		}
		return digests
	}
	before := checkpoints()
	if out := n.Godwit(t, "checkpoint", "--every", "10s", "--keep", "1", vm); !strings.Contains(out, "every 10s") {
		t.Errorf("checkpoint --every: %s", out)
	}
	var now []string
	err := harness.Poll(t.Context(), bound, func(context.Context) error {
		if now = checkpoints(); len(now) == 0 || slices.Contains(before, now[len(now)-1]) {
			return fmt.Errorf("no new one beside %v: %v", before, now)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	watch.Mark("taken")
	after(t, watch, "taken")
	if out := n.Godwit(t, "checkpoint", "--stop", vm); !strings.Contains(out, "no checkpoints are taken") {
		t.Errorf("checkpoint --stop: %s", out)
	}
}

// ofContainerd has containerd's clients take checkpoints of a task, and make one from them:
// they hold a pointer, and the VM is the one that it was.
func ofContainerd(t *testing.T, n *harness.Node) {
	const id, ref = "pointed", "godwit.test/pointed:1"
	n.Ctr(t, "run", "-d", "--runtime", "io.containerd.godwit.v1", images.Probe, id, "/bin/probe")
	boot := func(exec string) string {
		return n.Ctr(t, "task", "exec", "--exec-id", exec, id, "cat", "/proc/sys/kernel/random/boot_id")
	}
	booted := boot("boot1")
	poll := func(what string, ok func(context.Context) bool) {
		t.Helper()
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			if !ok(ctx) {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	n.Ctr(t, "task", "checkpoint", id)
	n.Ctr(t, "container", "checkpoint", "--image", "--task", id, ref)
	if again := boot("boot2"); again != booted {
		t.Errorf("boot %s after the checkpoints, was %s", again, booted)
	}
	if size := content(t, n, "containerd.container.criu.checkpoint.criu.tar"); size > 16<<10 {
		t.Errorf("containerd holds %d bytes of it", size)
	}
	n.Ctr(t, "task", "kill", "-s", "KILL", id)
	poll("the task goes", func(ctx context.Context) bool { _, err := n.RunCtr(ctx, "task", "rm", id); return err == nil })
	n.Ctr(t, "container", "rm", id)
	n.Ctr(t, "container", "restore", "--live", id, ref)
	if now := boot("boot3"); now != booted {
		t.Errorf("boot %s of the restored task, was %s", now, booted)
	}
	if out := n.Godwit(t, "snapshot", "ls", id); strings.Count(out, "checkpoint") < 1 {
		t.Errorf("snapshot ls: %s", out)
	}
	n.Ctr(t, "task", "kill", "-s", "KILL", id)
	poll("the task goes", func(ctx context.Context) bool { _, err := n.RunCtr(ctx, "task", "rm", id); return err == nil })
	n.Ctr(t, "container", "rm", id)
}

// content is how much of the blobs that are labelled so containerd holds.
func content(t *testing.T, n *harness.Node, kind string) (sum int64) {
	t.Helper()
	client, err := containerd.New(n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	found := false
	all, err := client.ImageService().List(ctx, `labels."containerd.io/checkpoint"==true`)
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range all {
		data, err := contentstore.ReadBlob(ctx, client.ContentStore(), im.Target)
		var index v1.Index
		if err == nil {
			err = json.Unmarshal(data, &index)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range index.Manifests {
			if strings.Contains(m.MediaType, kind) {
				sum, found = sum+m.Size, true
			}
		}
	}
	if !found {
		t.Fatalf("no checkpoint among %v", all)
	}
	return sum
}

// holdManifest holds the worker's manifest until open is called.
func holdManifest(h *harness.Harness) (reached <-chan struct{}, open func()) {
	return h.Door.Hold(func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/g")
	})
}

// lose kills all that runs on a node, as a loss of power does.
func lose(t *testing.T, n *harness.Node) {
	t.Helper()
	j := until(t, n, vm, "the VM is the node's own", func(j noted) bool { return j.Phase == "OWN" })
	pids := []string{fmt.Sprint(j.Shim.PID), fmt.Sprint(j.Process.PID)}
	for _, p := range []*harness.Process{n.Godwitd, n.Containerd} {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Run(t.Context(), "kill", slices.Insert(pids, 0, "-KILL")...); err != nil {
		t.Fatal(err)
	}
}
