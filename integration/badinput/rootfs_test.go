//go:build integration

package badinput

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// A root file system that is none fails Create, or Start where only the guest can tell,
// and leaves nothing but the task's name.
func TestRootfsThatIsNone(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	b := newBox(t, n)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no tree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	silent := b.silentGuest(t, n, dir)
	for name, source := range map[string]string{"file": file, "missing": filepath.Join(dir, "none")} {
		if _, err := b.taskOn(t, "rootfs-"+name, source); err == nil || !strings.Contains(err.Error(), source) {
			t.Errorf("%s: %v", name, err)
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.taskOn(t, "rootfs-empty", empty); err == nil ||
		!strings.Contains(err.Error(), `exec: "sleep": executable file not found in $PATH`) {
		t.Errorf("create over a root file system without the program: %v", err)
	}
	// The agent never answers: the error names the key and shows the console's end.
	err := <-silent
	for _, want := range []string{"timeouts.boot", "no agent lives here"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a guest that never answers: %v, want %q", err, want)
		}
	}
}

// taskOn makes a task whose root file system is a bind mount of source.
func (b *box) taskOn(t *testing.T, id, source string, opts ...client.NewTaskOpts) (client.Task, error) {
	t.Helper()
	c, err := b.NewContainer(b.ctx, id, client.WithRuntime(runtimeName, nil),
		client.WithNewSpec(oci.WithProcessArgs("sleep", "1000"), oci.WithDefaultPathEnv))
	if err != nil {
		t.Fatal(err)
	}
	clean := namespaces.WithNamespace(context.WithoutCancel(t.Context()), "default")
	t.Cleanup(func() {
		if err := c.Delete(clean); err != nil {
			t.Errorf("delete container %s: %v", id, err)
		}
	})
	opts = append(opts, client.WithRootFS([]mount.Mount{{Type: "bind", Source: source, Options: []string{"rbind", "rw"}}}))
	return c.NewTask(b.ctx, cio.NullIO, opts...)
}

// silentGuest starts a VM whose init is no agent, and answers how that ended.
func (b *box) silentGuest(t *testing.T, n *harness.Node, dir string) <-chan error {
	t.Helper()
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	const init = "#!/bin/busybox sh\n/bin/busybox mkdir /dev\n/bin/busybox mount -t devtmpfs dev /dev\necho no agent " +
		"lives here >/dev/console\nexec /bin/busybox sleep 1000\n"
	if err := os.WriteFile(filepath.Join(tree, "init"), []byte(init), 0o755); err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(dir, "initramfs")
	out, err := exec.Command("sh", "-c", "cp /bin/busybox "+tree+"/bin/ && cd "+tree+
		" && find . | cpio --quiet -o -H newc >"+initrd).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	config := changed(t, n, map[string]string{"initrd = ": `initrd = "` + initrd + `"`,
		"[log]": "[timeouts]\nboot = \"20s\"\n[log]"})
	n.Ctr(t, "container", "create", "--runtime", runtimeName, "--runtime-config-path", config, images.Busybox,
		"silent", "true")
	ended := make(chan error, 1)
	go func() {
		_, err := n.RunCtr(b.ctx, "task", "start", "--null-io", "silent")
		ended <- err
	}()
	t.Cleanup(func() {
		_, _ = n.RunCtr(context.WithoutCancel(t.Context()), "task", "rm", "--force", "silent") // where it was not removed
		if _, err := n.RunCtr(context.WithoutCancel(t.Context()), "container", "rm", "silent"); err != nil {
			t.Error(err)
		}
	})
	return ended
}
