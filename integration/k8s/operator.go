package k8s

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Programs of godwit's own pods.
const (
	operatorProgram = "godwit-operator"
	agentProgram    = "godwit-node"
)

// Operators has so many operators run.
func (c *Cluster) Operators(ctx context.Context, count int) error {
	if _, err := c.Kubectl(ctx, "scale", "--namespace", system, fmt.Sprint("--replicas=", count),
		"deployment/godwit-operator"); err != nil {
		return err
	}
	if count > 0 {
		_, err := c.Kubectl(ctx, "rollout", "status", "--namespace", system, "--timeout="+readyTime.String(),
			"deployment/godwit-operator")
		return err
	}
	return harness.Poll(ctx, readyTime, func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "get", "pods", "--namespace", system, "--output=name",
			"--selector=app.kubernetes.io/name=godwit-operator")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("operators: %s", out)
		}
		return err
	})
}

// OperatorLog is what the operators have said that run now.
func (c *Cluster) OperatorLog() (string, error) {
	return c.Kubectl(context.Background(), "logs", "--namespace", system, "--prefix", "--tail=-1", "--ignore-errors",
		"--selector=app.kubernetes.io/name=godwit-operator")
}

// Kill kills a program of godwit's pods on those nodes, as a lack of memory does. The kubelets start its container
// again.
func Kill(program string, nodes ...*harness.Node) error {
	return signal(program, syscall.SIGKILL, nodes...)
}

func signal(program string, s syscall.Signal, nodes ...*harness.Node) error {
	pids, err := running(program, nodes...)
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("no %s runs", program)
	}
	for _, pid := range pids {
		if err == nil {
			err = syscall.Kill(pid, s)
		}
	}
	return err
}

// everything is each process of a node, those of its pods too: a pod has a process namespace of its own.
func everything(n *harness.Node) (pids []int, err error) {
	dirs, err := os.ReadDir("/proc")
	for _, dir := range dirs {
		pid, nerr := strconv.Atoi(dir.Name())
		if nerr != nil {
			continue
		}
		if in, below := n.Within(pid); in || below {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// running are the processes of a program on nodes.
func running(program string, nodes ...*harness.Node) (pids []int, err error) {
	for _, n := range nodes {
		all, err := everything(n)
		if err != nil {
			return nil, err
		}
		for _, pid := range all {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if first, _, _ := strings.Cut(string(line), "\x00"); err == nil && filepath.Base(first) == program {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// The images of VirtualMachines.
const (
	RedisImage = "localhost/godwit/redis:7"
	ProbeImage = "localhost/godwit/probe:1"
)

// machines are the images that the VMs of the cases and of the demo run.
func (c *Cluster) machines(ctx context.Context) ([]images.Image, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	probe, err := c.Build(ctx, "probe")
	if err != nil {
		return nil, err
	}
	all, err := images.Real(ctx, filepath.Join(root, "bin", "debs"), probe)
	if err != nil {
		return nil, err
	}
	names := map[string]string{images.Redis: RedisImage, images.Scratch: ProbeImage}
	var chosen []images.Image
	for _, i := range all {
		if name := names[i.Name]; name != "" {
			i.Name = name
			chosen = append(chosen, i)
		}
	}
	return chosen, nil
}
