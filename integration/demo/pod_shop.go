package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"godwit.dev/godwit/integration/critest"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// The containers of the pod. The first one ends before the others begin. The sidecar has one connection to redis for as
// long as it lives, and ends when that breaks. Each number that redis gives goes to its log, and to a file that the
// containers share.
const (
	setup  = `cat /proc/sys/kernel/random/uuid > /shared/nonce`
	server = `exec redis-server --save "" --appendonly no --dir /tmp`
	side   = `until exec 3<>/dev/tcp/127.0.0.1/6379; do sleep 0.1; done 2>/dev/null
printf 'SET nonce %s\r\n' "$(cat /shared/nonce)" >&3; read -r ok <&3
while printf 'INCR n\r\n' >&3 && IFS=: read -r _ n <&3; do
	n=${n%$'\r'}; echo "count $n"; echo "$n" >> /shared/counts; sleep 0.05
done
echo "connection lost"; exit 1`
)

// shop is the pod as one node has it.
type shop struct {
	n               *critest.Ground
	dir, pod, redis string
	sidecar, log    string
}

type object = map[string]any

// cri runs crictl on a node.
func (d *podDemo) cri(ctx context.Context, n *critest.Ground, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	out, err := n.Crictl(ctx, stepTimeout(), args...)
	if err != nil {
		err = fmt.Errorf("crictl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out), err
}

// run makes the pod with its containers on a node. There it boots, wakes, or comes.
func (d *podDemo) run(ctx context.Context, n *critest.Ground, why string) (*shop, error) {
	s := &shop{n: n, dir: filepath.Join(n.Dir, "shop-"+why)}
	shared := filepath.Join(s.dir, "kubelet/pods/uid-shop/volumes/kubernetes.io~empty-dir/shared")
	if err := os.MkdirAll(shared, 0o777); err != nil {
		return nil, err
	}
	if err := os.Chmod(shared, 0o777); err != nil { // whatever the mask
		return nil, err
	}
	sandbox, err := critest.WriteConfig(s.dir, "pod", object{
		"metadata": object{"name": "shop", "namespace": "team", "uid": "uid-shop"}, "hostname": "shop",
		"log_directory": s.dir, "linux": object{}, "annotations": object{"godwit.dev/vm": "shop"},
	})
	if err != nil {
		return nil, err
	}
	d.say("node %s: crictl runp, create and start (%s)", n.Name, why)
	if s.pod, err = d.cri(ctx, n, "runp", "--runtime", "godwit", sandbox); err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for _, c := range []struct{ name, script string }{{"setup", setup}, {"redis", server}, {"sidecar", side}} {
		config, err := critest.WriteConfig(s.dir, c.name, object{
			"metadata": object{"name": c.name}, "image": object{"image": images.Redis}, "linux": object{},
			"command": []string{"/bin/bash", "-c", c.script}, "log_path": c.name + ".log",
			"mounts": []object{{"host_path": shared, "container_path": "/shared"}},
		})
		if err != nil {
			return nil, err
		}
		if ids[c.name], err = d.cri(ctx, n, "create", "--no-pull", s.pod, config, sandbox); err != nil {
			return nil, err
		}
		if _, err = d.cri(ctx, n, "start", ids[c.name]); err != nil {
			return nil, err
		}
		if c.name != "setup" {
			continue
		}
		if err := d.ended(ctx, n, ids[c.name]); err != nil {
			return nil, err
		}
	}
	count := len(ids)
	d.result.Containers = &count
	s.redis, s.sidecar, s.log = ids["redis"], ids["sidecar"], filepath.Join(s.dir, "sidecar.log")
	return s, nil
}

// told are the counts in the sidecar's log, in order.
func (s *shop) told() (all []int, err error) {
	data, err := os.ReadFile(s.log)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		_, text, ok := strings.Cut(line, " F count ") // of CRI's log, a whole line
		if !ok {
			return nil, fmt.Errorf("the sidecar says: %s", line)
		}
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			return nil, fmt.Errorf("the sidecar says: %s: %w", line, err)
		}
		all = append(all, n)
	}
	return all, nil
}

// judge looks at the pod after its way: its connection, the file that its containers share, and all logs.
func (d *podDemo) judge(ctx context.Context, s *shop) error {
	state, err := d.cri(ctx, s.n, "inspect", "-o", "go-template", "--template", "{{.status.state}}", s.sidecar)
	if err != nil {
		return err
	}
	tcp := strings.Contains(state, "RUNNING") // else its connection broke
	shared, err := d.cri(ctx, s.n, "exec", s.sidecar, "cat", "/shared/counts")
	if err != nil {
		return err
	}
	files := strings.Fields(shared)
	told, err := s.told()
	if err != nil {
		return err
	}
	all := append(slices.Clone(d.seen), told...)
	twice, logs, whole := 0, len(all) > 0, len(files) > 0
	seen := map[int]bool{}
	for i, n := range all {
		logs = logs && n == i+1
		if seen[n] {
			twice++
		}
		seen[n] = true
	}
	for i, n := range files {
		whole = whole && n == fmt.Sprint(i+1)
	}
	d.result.TCPOK, d.result.FilesOK, d.result.LogsOK, d.result.Duplicates = &tcp, &whole, &logs, &twice
	d.say("node %s: %d counts in the logs of both nodes, %d in the file", s.n.Name, len(all), len(files))
	return nil
}

// redis asks the pod's redis, once it answers.
func (d *podDemo) redis(ctx context.Context, s *shop, command string) (answer string, err error) {
	err = d.until(ctx, func(ctx context.Context) error {
		args := append([]string{"exec", s.redis, "redis-cli"}, strings.Fields(command)...)
		if answer, err = d.cri(ctx, s.n, args...); err == nil && answer == "" {
			err = errors.New("redis has no " + command)
		}
		return err
	})
	return answer, err
}

func (d *podDemo) until(ctx context.Context, ok func(context.Context) error) error {
	return harness.Poll(ctx, stepTimeout(), ok)
}

// ended waits for the end of a container.
func (d *podDemo) ended(ctx context.Context, n *critest.Ground, id string) error {
	return d.until(ctx, func(ctx context.Context) error {
		out, err := d.cri(ctx, n, "inspect", id)
		if err == nil && !strings.Contains(out, "CONTAINER_EXITED") {
			err = fmt.Errorf("container %s has not ended", id)
		}
		return err
	})
}
