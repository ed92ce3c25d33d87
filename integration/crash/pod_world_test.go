//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
)

// podImages are two images that the ground has: a disk for each is plugged in.
var podImages = []string{"localhost/e2e-test-images/busybox:1.29-2",
	"localhost/k8s-staging-cri-tools/test-image-1:latest"}

// podWorld is a node of Kubernetes with one pod, which cases share as long as it lives.
type podWorld struct {
	*critest.Ground
	*pointed
	dir    string // of configurations
	empty  harness.Inventory
	pod    string   // its id; empty: there is none
	fixed  []string // two containers that no case touches
	third  string   // the container that cases are about; empty: there is none
	serial int      // of names: CRI gives none away twice
}

func newPodWorld(t *testing.T) *podWorld {
	dir, p := points(t)
	g, err := critest.OpenWith(t.Context(), harness.Options{Release: harness.Newest, Programs: p.programs, Log: t.Logf},
		podImages...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &podWorld{Ground: g, pointed: p, dir: dir}
	if err := errors.Join(w.StartGodwitd(t.Context()), w.forget(w.Node)); err != nil {
		t.Fatal(err)
	}
	for _, image := range podImages {
		if _, err := w.crictl(t.Context(), "pull", image); err != nil {
			t.Fatal(err)
		}
	}
	if w.empty, err = w.Inventory(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *podWorld) crictl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	out, err := w.Crictl(ctx, time.Minute, args...)
	return strings.TrimSpace(out), err
}

func (w *podWorld) file(name string, content map[string]any) (string, error) {
	return critest.WriteConfig(w.dir, name, content)
}

func (w *podWorld) sandbox() (string, error) {
	w.serial++
	return w.file("pod", map[string]any{
		"metadata": map[string]any{"name": "pod", "namespace": "team", "uid": "u" + strconv.Itoa(w.serial),
			"attempt": w.serial},
		"linux": map[string]any{}, "annotations": map[string]any{"godwit.dev/memory": "256MiB"},
	})
}

// create makes a container of CRI, of which the shim hears nothing yet.
func (w *podWorld) create(ctx context.Context, name, image string) (string, error) {
	w.serial++
	config, err := w.file("c", map[string]any{
		"metadata": map[string]any{"name": name, "attempt": w.serial}, "image": map[string]any{"image": image},
		"command": []string{"/bin/sh", "-c", "trap 'exit 7' TERM; while :; do sleep 1; done"}, "linux": map[string]any{},
	})
	if err != nil {
		return "", err
	}
	return w.crictl(ctx, "create", "--no-pull", w.pod, config, filepath.Join(w.dir, "pod.json"))
}

// ready makes sure that there is a pod with two containers that run. With absent there is none.
func (w *podWorld) ready(ctx context.Context, absent bool) (err error) {
	if absent {
		return w.remove(ctx)
	}
	if w.pod == "" {
		config, err := w.sandbox()
		if err != nil {
			return err
		}
		if w.pod, err = w.crictl(ctx, "runp", "--runtime", "godwit", config); err != nil {
			return err
		}
		for _, name := range []string{"first", "second"} {
			id, err := w.create(ctx, name, podImages[0])
			if err == nil {
				_, err = w.crictl(ctx, "start", id)
			}
			if err != nil {
				return err
			}
			w.fixed = append(w.fixed, id)
		}
	}
	return nil
}

// remove removes all pods, and wants nothing left of them.
func (w *podWorld) remove(ctx context.Context) error {
	err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		out, err := w.crictl(ctx, "pods", "-q")
		for _, id := range strings.Fields(out) {
			_, e := w.crictl(ctx, "rmp", "-f", id)
			err = errors.Join(err, e)
		}
		return err
	})
	w.pod, w.third, w.fixed = "", "", nil
	if err != nil {
		return fmt.Errorf("remove the pod: %w", err)
	}
	return w.Clean(ctx, w.empty)
}

// drop removes the third container, however far it is.
func (w *podWorld) drop(ctx context.Context) error {
	if w.third == "" {
		return nil
	}
	err := harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		_, err := w.crictl(ctx, "rm", "-f", w.third)
		if err != nil && strings.Contains(err.Error(), "code = NotFound") { // by the call that was disturbed
			return nil
		}
		return err
	})
	w.third = ""
	return err
}

// state of a container as CRI has it.
func (w *podWorld) state(ctx context.Context, id string) (string, error) {
	return w.crictl(ctx, "inspect", "-o", "go-template", "--template", "{{.status.state}}", id)
}

// serves waits until a container does what it is told.
func (w *podWorld) serves(ctx context.Context, id string) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		out, err := w.crictl(ctx, "exec", id, "echo", "lives")
		if err == nil && out != "lives" {
			err = fmt.Errorf("container %s says %q", id, out)
		}
		return err
	})
}

// shim of the pod's VM.
func (w *podWorld) shim() (int, error) {
	all, err := w.PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range all {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		args := strings.Split(string(line), "\x00")
		if err == nil && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-godwit") && len(args) > 1 &&
			args[1] == "-namespace" {
			return pid, nil
		}
	}
	return 0, errors.New("find the shim: none runs")
}

// vmm of the pod; there is one.
func (w *podWorld) vmm() (int, error) {
	all, err := w.VMMs()
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("the node has VMMs %v", all)
	}
	if err != nil {
		return 0, err
	}
	return all[0], nil
}

// back waits until containerd answers, which another program starts again.
func (w *podWorld) back(ctx context.Context) error {
	return harness.Poll(ctx, settleBound, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := w.crictl(ctx, "pods", "-q")
		return err
	})
}
