//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	taskID   = "vm"
	netns    = "vmns" // of all tasks in turn: what one leaves there, the next one finds
	asked    = 33     // what init ends with when it is asked to
	initText = `trap "exit 33" TERM; sleep 100000 & wait`
)

// taskWorld is one node on which tasks are born and die.
type taskWorld struct {
	*harness.Harness
	n      *harness.Node
	empty  harness.Inventory
	client *containerd.Client
	seen   *recorder
	hook   string // program that OCI hooks run
	ear    string // where containerd takes events
	births int    // of containerd
}

// newTaskWorld takes what is to stand in containerd's configuration besides.
func newTaskWorld(t *testing.T, config string) *taskWorld {
	h := harness.New(t, harness.Options{Registry: harness.PlainHTTP, Godwitd: true, Images: true, Containerd: config})
	l := &taskWorld{Harness: h, n: h.Node(0), hook: filepath.Join(h.Dir, "hook")}
	l.ear = l.n.Socket + ".ttrpc"
	// A hook says that it was reached, and waits while its gate is there.
	script := fmt.Sprintf("#!/bin/sh\n[ -e %[1]s-gate-$1 ] || exit 0\n: >%[1]s-at-$1\nwhile [ -e %[1]s-gate-$1 ]; do "+
		"sleep 0.02; done\n", l.hook)
	if err := os.WriteFile(l.hook, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"netns add " + netns,
		"link add out type veth peer name eth0 netns " + netns,
		"link set out master gw0 up",
		"-n " + netns + " addr add 10.88.9.9/16 dev eth0",
		"-n " + netns + " link set eth0 up",
	} {
		if _, err := l.n.Run(t.Context(), "ip", strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.client.Close() })
	var err error
	if l.empty, err = l.n.Inventory(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// connect connects to containerd, again after it was killed, and listens to its events.
func (l *taskWorld) connect(ctx context.Context) error {
	if l.client != nil {
		l.client.Close()
	}
	client, err := containerd.New(l.n.Socket, containerd.WithDefaultNamespace("default"))
	if err != nil {
		return err
	}
	l.client = client
	if l.seen == nil {
		l.seen = &recorder{task: taskID}
	}
	return l.seen.listen(ctx, client)
}

// restartContainerd starts containerd again. It takes events at another address than before, and the
// shims' way there is open once the test listens: none of them is missed.
func (l *taskWorld) restartContainerd(ctx context.Context) error {
	l.births++
	next := fmt.Sprintf("%s/events%d", l.n.Dir, l.births)
	config := filepath.Join(l.n.Dir, "containerd.toml")
	data, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	text := strings.Replace(string(data), "'"+l.ear+"'", "'"+next+"'", 1)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o600), os.Remove(l.ear)); err != nil {
		return err
	}
	if err := l.n.StartContainerd(ctx); err != nil {
		return err
	}
	if err := l.connect(ctx); err != nil {
		return err
	}
	old := l.ear
	l.ear = next
	return os.Symlink(next, old)
}

// container makes the container object of the next task.
func (l *taskWorld) container(ctx context.Context) (containerd.Container, error) {
	image, err := l.client.GetImage(ctx, images.Busybox)
	if err != nil {
		return nil, err
	}
	return l.client.NewContainer(ctx, taskID,
		containerd.WithRuntime(runtimeName, nil), containerd.WithNewSnapshot(taskID, image),
		containerd.WithNewSpec(oci.WithDefaultPathEnv, oci.WithProcessArgs("sh", "-c", initText),
			oci.WithMaskedPaths(nil), oci.WithReadonlyPaths(nil), // for the way to panic
			oci.WithAnnotations(map[string]string{"godwit.dev/memory": "96MiB"}),
			oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/run/netns/" + netns}),
			func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
				run := func(kind string) []specs.Hook { return []specs.Hook{{Path: l.hook, Args: []string{"hook", kind}}} }
				s.Hooks = &specs.Hooks{CreateRuntime: run("createRuntime"), Poststart: run("poststart"), Poststop: run("poststop")}
				return nil
			}))
}

// shim finds the shim of the task, written down or not.
func (l *taskWorld) shim() (int, error) {
	return l.find("the shim", func(args []string) bool {
		return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-godwit") && len(args) > 1 &&
			args[1] == "-namespace" && slices.Contains(args, taskID) && !slices.Contains(args, "start") &&
			!slices.Contains(args, "delete")
	})
}

// vmm finds the VMM of the task, written down or not.
func (l *taskWorld) vmm() (int, error) {
	return l.find("the VMM", func(args []string) bool { return harness.IsVMM(args[0]) })
}

func (l *taskWorld) find(what string, is func(args []string) bool) (int, error) {
	all, err := l.n.PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range all {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if args := strings.Split(string(line), "\x00"); err == nil && is(args) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("find %s on node %s: none runs", what, l.n.Name)
}

// direct calls the shim's task service past containerd.
func (l *taskWorld) direct(ctx context.Context, do func(context.Context, taskapi.TTRPCTaskService) error) error {
	sockets, err := filepath.Glob(filepath.Join(l.n.Dir, "s", "*"))
	if err != nil || len(sockets) != 1 {
		return fmt.Errorf("find the shim's socket: %v, %w", sockets, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", sockets[0])
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	return do(namespaces.WithNamespace(ctx, "default"), taskapi.NewTTRPCTaskClient(client))
}

// task answers the task that containerd lists; nil if there is none. One whose state is
// not known is an error.
func (l *taskWorld) task(ctx context.Context) (containerd.Task, containerd.Status, error) {
	container, err := l.client.LoadContainer(ctx, taskID)
	if err != nil {
		return nil, containerd.Status{}, err
	}
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil, containerd.Status{}, nil
	}
	if err != nil {
		return nil, containerd.Status{}, err
	}
	status, err := task.Status(ctx)
	if errdefs.IsNotFound(err) {
		return nil, containerd.Status{}, nil
	}
	if err == nil && status.Status == containerd.Unknown {
		err = errors.New("the task's state is unknown")
	}
	return task, status, err
}

// clean waits until nothing of the task is left on the node.
func (l *taskWorld) clean(ctx context.Context) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		now, err := l.n.Inventory(ctx)
		if err != nil {
			return err
		}
		more := now.Since(l.empty)
		journals, _ := filepath.Glob(filepath.Join(l.n.Dir, "lib", "vms", "*", "*"))
		more = append(more, journals...)
		links, err := l.n.Run(ctx, "ip", "-n", netns, "-brief", "address")
		if err != nil {
			return err
		}
		if n := strings.Count(strings.TrimSpace(links), "\n"); n != 1 || !strings.Contains(links, "10.88.9.9/16") {
			more = append(more, "in the task's namespace: "+links)
		}
		if len(more) > 0 {
			return fmt.Errorf("node %s still holds:\n  %s", l.n.Name, strings.Join(more, "\n  "))
		}
		return nil
	})
}

// gated makes the hooks of a kind wait; the answer lets them go.
func (l *taskWorld) gated(kind string) (open func(), err error) {
	gate := l.hook + "-gate-" + kind
	if err := os.Remove(l.hook + "-at-" + kind); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return func() { _ = os.Remove(gate) }, os.WriteFile(gate, nil, 0o600)
}

// atHook waits until a hook of that kind waits.
func (l *taskWorld) atHook(ctx context.Context, kind string) error {
	return harness.Poll(ctx, runBound, func(context.Context) error {
		_, err := os.Stat(l.hook + "-at-" + kind)
		return err
	})
}

// short is a context for one call that nothing disturbs.
func short(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, harness.Slow(30*time.Second))
}
