//go:build integration

package cli

import (
	"context"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"godwit.dev/godwit/api/spec"
)

// labelDatabase is what godwitd tells a database of containerd by.
const labelDatabase = "godwit.dev/database"

// anotherContainer deletes a container that has no root file system here, and makes it again: the new one does not boot
// the disk of the old one. While containerd has another database the disk stays, and doctor says so.
func (d *day) anotherContainer(id string) {
	d.Helper()
	ctx := namespaces.WithNamespace(d.Context(), "default")
	client, err := containerd.New(d.n.Socket)
	d.must(err)
	defer client.Close()
	spaces := client.NamespaceService()
	labels, err := spaces.Labels(ctx, "default")
	d.must(err)
	database := labels[labelDatabase]
	if database == "" {
		d.Error("containerd's database has no label")
	}
	d.must(spaces.SetLabel(ctx, "default", labelDatabase, "another"))
	container, err := d.anew(ctx, client, id)
	d.must(err)
	out, err := d.n.RunCtr(ctx, "tasks", "start", "-d", id)
	if err == nil || !strings.Contains(err.Error(), "root file system") {
		d.Errorf("the new container boots: %s, %v", out, err)
	}
	d.must(container.Delete(ctx))
	found, _ := doctor(d.T, d.n)
	if said := found["kept disks"]; said.OK || !strings.Contains(said.Detail, "default/"+id) {
		d.Errorf("doctor says %+v", said)
	}
	if left, _ := filepath.Glob(filepath.Join(d.n.StateDir(), "disks", "default", id, "*")); len(left) == 0 {
		d.Error("the disk went with another database")
	}
	d.must(spaces.SetLabel(ctx, "default", labelDatabase, database))
}

// anew deletes a container that is stopped, and makes one of the same id and spec.
func (d *day) anew(ctx context.Context, client *containerd.Client, id string) (containerd.Container, error) {
	old, err := client.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	info, err := old.Info(ctx)
	if err != nil {
		return nil, err
	}
	s, err := old.Spec(ctx)
	if err != nil {
		return nil, err
	}
	if task, err := old.Task(ctx, nil); err == nil {
		if _, err := task.Delete(ctx); err != nil {
			return nil, err
		}
	}
	if err := old.Delete(ctx); err != nil {
		return nil, err
	}
	if s.Annotations[spec.AnnotationContainer] == "" {
		d.Errorf("the container has no identity: %v", s.Annotations)
	}
	delete(s.Annotations, spec.AnnotationContainer)
	return client.NewContainer(ctx, id, containerd.WithSpec(s), containerd.WithRuntime(info.Runtime.Name, nil))
}

func (d *day) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}
