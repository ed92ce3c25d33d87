//go:build integration

// Package life tests what goes on after the end of a daemon and what must end with a VM. Its
// tests restart containerd over running VMs, make and remove many VMs, leave taps without an
// owner, and start the host again.
package life

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	// bound of what boots a VM, or waits for one, on a busy machine without KVM.
	bound = 3 * time.Minute
)

// connect answers a client of the node's containerd that ends with the test.
func connect(t *testing.T, n *harness.Node) *containerd.Client {
	t.Helper()
	client, err := containerd.New(n.Socket, containerd.WithDefaultNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// create makes a task of little RAM that ends with code when it is asked to.
func create(ctx context.Context, client *containerd.Client, id string, code int, memory string) (containerd.Task,
	error) {
	image, err := client.GetImage(ctx, images.Busybox)
	if err != nil {
		return nil, err
	}
	script := fmt.Sprintf(`trap "exit %d" TERM; sleep 100000 & wait`, code)
	box, err := client.NewContainer(ctx, id, containerd.WithRuntime(runtimeName, nil),
		containerd.WithNewSnapshot(id, image),
		containerd.WithNewSpec(oci.WithDefaultPathEnv, oci.WithProcessArgs("sh", "-c", script),
			oci.WithAnnotations(map[string]string{"godwit.dev/memory": memory})))
	if err != nil {
		return nil, err
	}
	return box.NewTask(ctx, cio.NullIO)
}

// load finds a task again.
func load(ctx context.Context, client *containerd.Client, id string) (containerd.Task, error) {
	box, err := client.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	return box.Task(ctx, nil)
}

// execute runs a program in a task and answers its exit code.
func execute(ctx context.Context, task containerd.Task, id string, args ...string) (uint32, error) {
	p, err := task.Exec(ctx, id, &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}}, cio.NullIO)
	if err != nil {
		return 0, err
	}
	wait, err := p.Wait(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.Start(ctx); err != nil {
		return 0, err
	}
	s := <-wait
	if s.Error() != nil {
		return 0, s.Error()
	}
	_, err = p.Delete(ctx)
	return s.ExitCode(), err
}

// ask signals a task until it has ended: a shell that has not set its trap yet does not
// hear SIGTERM.
func ask(ctx context.Context, wait <-chan containerd.ExitStatus, kill func() error) (uint32, error) {
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	for {
		if err := kill(); err != nil {
			return 0, err
		}
		select {
		case s := <-wait:
			return s.ExitCode(), s.Error()
		case <-ctx.Done():
			return 0, errors.New("the task does not end")
		case <-again.C:
		}
	}
}

// remove ends a task, deletes it with its container, and checks what it ended with.
func remove(ctx context.Context, client *containerd.Client, id string, code uint32) error {
	task, err := load(ctx, client, id)
	if err != nil {
		return err
	}
	wait, err := task.Wait(ctx)
	if err != nil {
		return err
	}
	got, err := ask(ctx, wait, func() error {
		status, err := task.Status(ctx)
		if err != nil || status.Status == containerd.Stopped {
			return err
		}
		if err := task.Kill(ctx, syscall.SIGTERM); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	s, err := task.Delete(ctx)
	if err != nil {
		return err
	}
	if got != code || s.ExitCode() != code {
		return fmt.Errorf("%s ended with %d, and %d at its deletion, want %d", id, got, s.ExitCode(), code)
	}
	box, err := client.LoadContainer(ctx, id)
	if err != nil {
		return err
	}
	return box.Delete(ctx, containerd.WithSnapshotCleanup)
}

// direct calls the task service of a shim past containerd.
func direct(ctx context.Context, n *harness.Node, id string,
	do func(context.Context, taskapi.TTRPCTaskService) error) error {
	data, err := os.ReadFile(filepath.Join(n.Dir, "state", "io.containerd.runtime.v2.task", "default", id,
		"bootstrap.json"))
	if err != nil {
		return err
	}
	_, rest, _ := bytes.Cut(data, []byte("unix://"))
	path, _, _ := bytes.Cut(rest, []byte(`"`))
	conn, err := new(net.Dialer).DialContext(ctx, "unix", string(path))
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	return do(namespaces.WithNamespace(ctx, "default"), taskapi.NewTTRPCTaskClient(client))
}
