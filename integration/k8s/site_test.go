//go:build integration

package k8s

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

var (
	nodes   = flag.Int("nodes", 2, "nodes of the cluster, 1 or 2")
	handler = flag.String("handler", Godwit, "runtime handler of RuntimeClass godwit; runc: are the cases sound?")
)

// ground is the one cluster of all cases: it is started by the first of them.
var ground = sync.OnceValues(func() (*Cluster, error) {
	start := time.Now()
	c, err := Open(context.Background(), Options{Nodes: *nodes, Handler: *handler})
	fmt.Printf("k8s: %d nodes after %.0f s\n", *nodes, time.Since(start).Seconds())
	opened = append(opened, c)
	return c, err
})

// opened are the clusters that the cases share.
var opened []*Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, c := range opened {
		if c == nil {
			continue
		}
		if err := c.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the cluster:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// site is the cluster for a case.
type site struct {
	*Cluster
	t *testing.T
}

func open(t *testing.T) site {
	t.Helper()
	c, err := ground()
	if err != nil {
		t.Fatalf("start the cluster: %v", err)
	}
	return site{Cluster: c, t: t}
}

// apply makes the objects of a file of testdata. They go at the end of the case, and no VMM stays.
func (s site) apply(name string) {
	s.t.Helper()
	file, err := filepath.Abs(filepath.Join("testdata", name+".yml"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx := context.WithoutCancel(s.t.Context())
		if s.t.Failed() {
			log, lerr := s.OperatorLog()
			s.t.Log(log[max(0, len(log)-4<<10):], lerr)
			out, err := s.Kubectl(ctx, "describe", "gvm,vmop,vmrecords,pods")
			s.t.Log(out, err)
			s.Keep(s.t.Name())
		}
		if _, err := s.Kubectl(ctx, "delete", "--ignore-not-found", "--timeout="+limit.String(), "-f", file); err != nil {
			out, serr := s.Kubectl(ctx, "get", "gvm,vmop,vmrecords,pods", "--ignore-not-found", "-o", "yaml")
			s.t.Error(err, out, serr)
		}
		if err := harness.Poll(ctx, limit, s.empty); err != nil {
			s.t.Error(err)
		}
	})
	s.kubectl("apply", "-f", file)
}

// empty tells whether no node has a VMM.
func (s site) empty(context.Context) error { return s.have(0) }

// have wants so many VMMs on all nodes.
func (s site) have(want int) error {
	all, count := map[string][]int{}, 0
	for _, n := range s.Nodes() {
		pids, err := n.VMMs()
		if err != nil {
			return err
		}
		all[n.Name] = pids
		count += len(pids)
	}
	if count != want {
		return fmt.Errorf("the nodes have the VMMs %v, want %d", all, want)
	}
	return nil
}

func (s site) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.Kubectl(s.t.Context(), args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// limit bounds a step of a case: a VM without KVM on a busy machine takes its time.
const limit = 3 * time.Minute

// ready waits until a pod's containers all run and its probes say so.
func (s site) ready(pod string) { s.t.Helper(); s.wait("condition=Ready", "pod/"+pod) }

// wait waits until an object is what condition says.
func (s site) wait(condition, object string) {
	s.t.Helper()
	s.kubectl("wait", "--for="+condition, "--timeout="+limit.String(), object)
}

// pause is between two questions: each starts a kubectl.
const pause = 300 * time.Millisecond

// eventually asks kubectl until the answer is what ok wants.
func (s site) eventually(what string, ok func(out string) bool, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	for {
		out, err := s.Kubectl(ctx, args...)
		if err == nil && ok(out) {
			return out
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("wait for %s: %v: %s", what, err, out)
		case <-time.After(pause):
		}
	}
}

// has is what output is to have in it.
func has(text string) func(string) bool {
	return func(out string) bool { return strings.Contains(out, text) }
}

// exec runs a command in a container of a pod.
func (s site) exec(pod, container string, command ...string) string {
	s.t.Helper()
	return s.kubectl(append([]string{"exec", pod, "-c", container, "--"}, command...)...)
}

// status is what a pod's status says about a container.
type status struct {
	Name         string
	RestartCount int
	Ready        bool
	ContainerID  string
	State        state
	LastState    state
}

type state struct {
	Running    *struct{ StartedAt string }
	Waiting    *struct{ Reason, Message string }
	Terminated *struct {
		ExitCode        int
		Reason, Message string
	}
}

// statuses reads those of a pod's containers by name, the init containers among them.
func (s site) statuses(pod string) map[string]status {
	s.t.Helper()
	var object struct {
		Status struct{ ContainerStatuses, InitContainerStatuses []status }
	}
	if err := json.Unmarshal([]byte(s.kubectl("get", "pod", pod, "-o", "json")), &object); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]status{}
	for _, c := range append(object.Status.ContainerStatuses, object.Status.InitContainerStatuses...) {
		all[c.Name] = c
	}
	return all
}

// becomes waits until what a pod's status says about a container is what ok wants.
func (s site) becomes(what, pod, container string, ok func(status) bool) status {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		c := s.statuses(pod)[container]
		if ok(c) {
			return c
		}
		if time.Now().After(end) {
			s.t.Fatalf("wait for %s: container %s of pod %s is %+v", what, container, pod, c)
		}
	}
}
