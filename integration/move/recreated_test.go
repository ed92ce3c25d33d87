//go:build integration

package move

import (
	"context"
	"maps"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/migrate/tasks"
)

// What a container is made by, containerd itself says: one that was made anew under the name of a VM that left
// keeps its labels and its root file system. It may be made before the VM's was marked, or after that.
func TestContainerMadeAnew(t *testing.T) {
	n := harness.New(t, harness.Options{Nodes: 1}).Node(0)
	cfg, err := config.Load(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	cfg.CNI.ConfDir = t.TempDir() // this process is on no node
	godwitd, err := tasks.New(cfg, n.Config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer godwitd.Close()
	client, err := containerd.New(n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const digest = "sha256:1"
	name, ctx := &nodev1.VM{Namespace: "default", Id: "anew"}, namespaces.WithNamespace(t.Context(), "default")
	files := client.SnapshotService(defaults.DefaultSnapshotter)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	made := func() containerd.Container {
		t.Helper()
		// containerd collects what nothing refers to, after each deletion.
		ctx, done, err := client.WithLease(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { must("end lease", done(ctx)) }()
		_, err = files.Prepare(ctx, name.GetId(), "")
		var c containerd.Container
		if err == nil {
			c, err = client.NewContainer(ctx, name.GetId(), containerd.WithSpec(&specs.Spec{Linux: &specs.Linux{}}),
				containerd.WithRuntime("io.containerd.godwit.v1", nil),
				containerd.WithSnapshotter(defaults.DefaultSnapshotter), containerd.WithSnapshot(name.GetId()),
				containerd.WithContainerLabels(map[string]string{"of": "somebody"}))
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	removed := func(c containerd.Container) {
		t.Helper()
		if err := c.Delete(ctx, containerd.WithSnapshotCleanup); err != nil {
			t.Fatal(err)
		}
	}
	leaves := func(ctx context.Context, created int64, between func()) {
		t.Helper()
		must("Moving", godwitd.MarkDeparted(ctx, name, created, digest, ""))
		between()
		must("Moved", godwitd.CleanDeparted(ctx, name, digest, ""))
		must("Gone", godwitd.RemoveDeparted(ctx, name, digest))
	}
	for _, late := range []bool{false, true} {
		was := made()
		created := time.Now().UnixNano()
		anew := was
		replaced := func() {
			removed(was)
			anew = made()
		}
		if !late {
			replaced()
		}
		leaves(t.Context(), created, func() {
			labels, err := anew.Labels(ctx)
			if marked := labels[tasks.LabelDigest] == digest; err != nil || marked != late {
				t.Errorf("marked: %v, %v", labels, err)
			}
			if late {
				replaced()
			}
		})
		labels, err := anew.Labels(ctx)
		if err != nil || !maps.Equal(labels, map[string]string{"of": "somebody"}) {
			t.Errorf("marked before %v: labels %v, %v", late, labels, err)
		}
		if _, err := files.Stat(ctx, name.GetId()); err != nil {
			t.Errorf("marked before %v: root file system: %v", late, err)
		}
		removed(anew)
	}
	made()
	leaves(t.Context(), time.Now().UnixNano(), func() {})
	if _, err := client.LoadContainer(ctx, name.GetId()); !errdefs.IsNotFound(err) {
		t.Errorf("the VM's own: %v", err)
	}
	if _, err := files.Stat(ctx, name.GetId()); !errdefs.IsNotFound(err) {
		t.Errorf("the VM's own root file system: %v", err)
	}
}
