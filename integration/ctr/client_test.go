//go:build integration

package ctr

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// TestClient is what containerd's own client asks of a runtime and ctr has no words for, with every
// release of containerd.
func TestClient(t *testing.T) {
	for _, release := range harness.Releases {
		t.Run(string(release), func(t *testing.T) {
			h := harness.New(t, harness.Options{Images: true, Release: release})
			n := h.Node(0)
			n.CheckClean(t)
			c, err := client.New(n.Socket)
			must(t, "dial containerd", err)
			t.Cleanup(func() { c.Close() })
			ctx := namespaces.WithNamespace(t.Context(), "default")
			testFeatures(ctx, t, c)
			testOptions(ctx, t, c)
			testMounts(ctx, t, n, c)
			testMissing(ctx, t, c)
		})
	}
}

// testFeatures: the features come to the client as the type that the CRI plugin reads, and offer
// user namespaces to pods.
func testFeatures(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	plugin, err := c.IntrospectionService().PluginInfo(ctx, "io.containerd.runtime.v2", "task",
		&types.RuntimeRequest{RuntimePath: runtimeName})
	must(t, "ask for the runtime", err)
	var info types.RuntimeInfo
	must(t, "read the answer", typeurl.UnmarshalTo(plugin.Extra, &info))
	known, err := typeurl.UnmarshalAny(info.Features)
	must(t, "read the features", err)
	f, ok := known.(*features.Features)
	if !ok || f.Linux == nil || f.Linux.MountExtensions == nil || f.Linux.MountExtensions.IDMap == nil {
		t.Fatalf("the features are %T %+v", known, known)
	}
	if !slices.Contains(f.Linux.Namespaces, "pid") || !slices.Contains(f.Hooks, "poststop") ||
		!slices.Contains(f.MountOptions, "noexec") || !slices.Contains(f.Linux.Capabilities, "CAP_CHOWN") {
		t.Errorf("the features are %+v %+v", f, f.Linux)
	}
	if !*f.Linux.MountExtensions.IDMap.Enabled || !slices.Contains(f.Linux.Namespaces, "user") {
		t.Error("pods are offered no user namespaces")
	}
}

// box makes a container without a task, and without a snapshot.
func box(ctx context.Context, t *testing.T, c *client.Client, id string, args ...string) client.Container {
	t.Helper()
	container, err := c.NewContainer(ctx, id, client.WithRuntime(runtimeName, nil),
		client.WithNewSpec(oci.WithProcessArgs(args...)))
	must(t, "make container", err)
	t.Cleanup(func() { must(t, "delete container", container.Delete(context.WithoutCancel(ctx))) })
	return container
}

// testOptions: an option of runc that a VM has nothing for is refused by its name.
func testOptions(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	container := box(ctx, t, c, "options", "true")
	for name, option := range map[string]client.NewTaskOpts{
		"ShimCgroup": client.WithShimCgroup("/godwit"), "NoPivotRoot": client.WithNoPivotRoot,
		"IoUid": client.WithUIDOwner(1000),
	} {
		task, err := container.NewTask(ctx, cio.NullIO, option)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("a task with option %s: %v, %v", name, task, err)
		}
	}
}

// testMounts: containerd leaves the transform "format" to the shim, whatever is mounted below. So an
// overlay over a directory of the host runs, and a bind mount of another mount.
func testMounts(ctx context.Context, t *testing.T, n *harness.Node, c *client.Client) {
	t.Helper()
	view, tree := filepath.Join(n.Dir, "view"), filepath.Join(n.Dir, "tree")
	must(t, "make mount point", os.MkdirAll(view, 0o755))
	n.Ctr(t, "images", "mount", images.Busybox, view)
	_, err := n.Run(ctx, "cp", "-a", view, tree)
	must(t, "copy image", err)
	n.Ctr(t, "images", "unmount", "--rm", view)
	lower := mount.Mount{Type: "bind", Source: tree, Options: []string{"rbind", "ro"}}
	for name, over := range map[string]mount.Mount{
		"overlay": {Type: "format/overlay", Source: "overlay", Options: []string{"lowerdir={{ mount 0 }}"}},
		"bind":    {Type: "format/bind", Source: "{{ mount 0 }}", Options: []string{"rbind", "ro"}},
	} {
		container := box(ctx, t, c, name, "/bin/sh", "-c", "/bin/touch /written && exit 33")
		task, err := container.NewTask(ctx, cio.NullIO, client.WithRootFS([]mount.Mount{lower, over}))
		must(t, "make task over "+name, err)
		done, err := task.Wait(ctx)
		must(t, "wait", err)
		must(t, "start task over "+name, task.Start(ctx))
		if s := <-done; s.ExitCode() != 33 {
			t.Errorf("%s: exit code %d, %v", name, s.ExitCode(), s.Error())
		}
		must(t, "end of the task's process", harness.Poll(ctx, stepTimeout, func(ctx context.Context) error {
			if out, err := n.Run(ctx, "cat", fmt.Sprintf("/proc/%d/cmdline", task.Pid())); err == nil {
				return fmt.Errorf("the task has ended, and its pid %d is %q", task.Pid(), out)
			}
			return nil
		}))
		_, err = task.Delete(ctx)
		must(t, "delete task", err)
	}
}

// testMissing: a program that the image does not have fails the Create of the task, as with runc, before
// anything has started.
func testMissing(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	image, err := c.GetImage(ctx, images.Busybox)
	must(t, "find image", err)
	for program, want := range map[string]string{
		"nosuch":      `exec: "nosuch": executable file not found in $PATH`,
		"/bin/nosuch": "stat /bin/nosuch: no such file or directory",
	} {
		container, err := c.NewContainer(ctx, "missing", client.WithNewSnapshot("missing", image),
			client.WithRuntime(runtimeName, nil), client.WithNewSpec(oci.WithImageConfig(image), oci.WithProcessArgs(program)))
		must(t, "make container", err)
		if task, err := container.NewTask(ctx, cio.NullIO); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a task of %s: %v, %v", program, task, err)
		}
		must(t, "delete container", container.Delete(ctx, client.WithSnapshotCleanup))
	}
}
