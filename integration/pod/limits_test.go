//go:build integration

package pod

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// greedy takes memory without end.
const greedy = `exec awk 'BEGIN { s = "x"; while (1) s = s s }'`

func limited(memory int64, more object) object {
	r := object{"memory_limit_in_bytes": memory}
	for key, value := range more {
		r[key] = value
	}
	return object{"linux": object{"resources": r}}
}

// inspected is what crictl inspect says of a container.
type inspected struct {
	Status struct {
		State    string `json:"state"`
		Reason   string `json:"reason"`
		ExitCode int    `json:"exitCode"`
	} `json:"status"`
}

func (n *node) inspect(id string) (c inspected) {
	n.t.Helper()
	if err := json.Unmarshal([]byte(n.crictl("inspect", id)), &c); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// value is a number as CRI has it.
type value struct {
	Value string `json:"value"`
}

func (v value) number() float64 {
	f, _ := strconv.ParseFloat(v.Value, 64)
	return f
}

// usage is what a container or pod uses.
type usage struct {
	CPU struct {
		Nanos value `json:"usageCoreNanoSeconds"`
	} `json:"cpu"`
	Memory struct {
		WorkingSet value `json:"workingSetBytes"`
		Usage      value `json:"usageBytes"`
	} `json:"memory"`
}

func (n *node) usageOf(id string) usage {
	n.t.Helper()
	var out struct {
		Stats []usage `json:"stats"`
	}
	text := n.crictl("stats", "-o", "json", "--id", id)
	if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Stats) != 1 {
		n.t.Fatalf("stats of %s: %v: %s", id, err, text)
	}
	return out.Stats[0]
}

func (n *node) usageOfPod(id string) usage {
	n.t.Helper()
	var out struct {
		Stats []struct {
			Linux usage `json:"linux"`
		} `json:"stats"`
	}
	text := n.crictl("statsp", "-o", "json", "--id", id)
	if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Stats) != 1 {
		n.t.Fatalf("stats of pod %s: %v: %s", id, err, text)
	}
	return out.Stats[0].Linux
}

// near fails the test unless two figures are within a tenth of each other.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.0f, and %.0f is expected", what, got, want)
	if math.Abs(got-want) > want/10 {
		t.Errorf("%s: %.0f is not within a tenth of %.0f", what, got, want)
	}
}

// TestLimits: the limits of containers and of the VM, and what is told of their use.
func TestLimits(t *testing.T) {
	n := open(t, harness.Newest)
	config := n.sandbox("limits", object{"annotations": object{"godwit.dev/memory": "384MiB", "godwit.dev/vcpus": "1"},
		"linux": object{"cgroup_parent": "/pods/limits"}})
	pod := n.crictl("runp", "--runtime", "godwit", config)
	run := n.runner(pod, config)
	calm := run("calm", "sleep 10000", nil)
	t.Run("a container's own limit", func(t *testing.T) {
		id := run("greedy", greedy, limited(32<<20, nil))
		n.ended(t, id, "OOMKilled")
		if out := n.crictl("exec", calm, "echo", "lives"); out != "lives" {
			t.Errorf("another container says %q", out)
		}
	})
	t.Run("stats", func(t *testing.T) { n.stats(t, pod, run) })
	t.Run("update", func(t *testing.T) { n.update(t, calm) })
	t.Run("the VM is full", func(t *testing.T) {
		id := run("glutton", greedy, nil)
		n.ended(t, id, "OOMKilled")
		if out := n.crictl("exec", calm, "echo", "lives"); out != "lives" {
			t.Errorf("another container says %q", out)
		}
	})
	n.crictl("rmp", "-f", pod)
}

// ended waits for the end of a container that was killed for its memory.
func (n *node) ended(t *testing.T, id, reason string) {
	t.Helper()
	n.eventually("its end", has("CONTAINER_EXITED"), "inspect", id)
	if c := n.inspect(id); c.Status.Reason != reason || c.Status.ExitCode != 137 {
		t.Errorf("it ended with %+v, not for %s", c.Status, reason)
	}
}

// inGuest reads a file of the container's cgroup there.
func (n *node) inGuest(id, file string) float64 {
	n.t.Helper()
	text := n.crictl("exec", id, "cat", "/sys/fs/cgroup/"+file)
	for line := range strings.Lines(text) {
		name, number, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			number = name
		}
		if !found || name == "usage_usec" {
			f, err := strconv.ParseFloat(number, 64)
			if err != nil {
				n.t.Fatalf("%s has %q", file, text)
			}
			return f
		}
	}
	n.t.Fatalf("%s has %q", file, text)
	return 0
}

// stats: the figures of a container are those that its guest shows. Those of the pod are what its VM costs the host.
func (n *node) stats(t *testing.T, pod string, run func(name, script string, more object) string) {
	id := run("busy", "x=$(head -c 67108864 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; "+
		"echo done; sleep 10000; true", limited(160<<20, nil))
	n.eventually("the end of its work", has("done"), "logs", id)
	u := n.usageOf(id)
	near(t, "memory of a container", u.Memory.Usage.number(), n.inGuest(id, "memory.current"))
	near(t, "CPU of a container, ns", u.CPU.Nanos.number(), n.inGuest(id, "cpu.stat")*1000)
	p := n.usageOfPod(pod)
	// Not the CPU: in a guest whose host is busy it counts the time that the VM waits, too.
	if p.Memory.Usage.number() < u.Memory.Usage.number() || p.CPU.Nanos.number() == 0 {
		t.Errorf("the pod costs %+v, and one of its containers uses %+v", p, u)
	}
	near(t, "memory of the pod", p.Memory.Usage.number(), n.onHost(t, pod, "memory.usage_in_bytes", "memory.current"))
}

// onHost reads a file of the VM's cgroup on the host, by its name in cgroups of version 1 or 2.
func (n *node) onHost(t *testing.T, pod, v1, v2 string) float64 {
	t.Helper()
	out, err := n.Run(t.Context(), "sh", "-c",
		`cat $(find /sys/fs/cgroup -path "*`+pod+"/"+v1+`" -o -path "*`+pod+"/"+v2+`" | head -1)`)
	if err != nil {
		t.Fatal(out, err)
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// update: limits of a container change while it runs, within the size of the VM.
func (n *node) update(t *testing.T, id string) {
	n.crictl("update", "--memory", strconv.Itoa(100<<20), "--cpu-quota", "50000", "--cpu-period", "100000", id)
	if got := n.inGuest(id, "memory.max"); got != 100<<20 {
		t.Errorf("the guest has a limit of %.0f", got)
	}
	if got := n.crictl("exec", id, "cat", "/sys/fs/cgroup/cpu.max"); got != "50000 100000" {
		t.Errorf("the guest has a CPU limit of %q", got)
	}
	_, err := n.try(t.Context(), "update", "--memory", strconv.Itoa(1<<30), id)
	refusal{want: strconv.Itoa(1 << 30)}.check(t, "memory", err)
	refusal{want: strconv.Itoa(384 << 20)}.check(t, "memory", err)
	_, err = n.try(t.Context(), "update", "--cpu-quota", "400000", "--cpu-period", "100000", id)
	refusal{want: "it asks for 4 CPUs, the VM has 1"}.check(t, "CPU", err)
	if got := n.inGuest(id, "memory.max"); got != 100<<20 {
		t.Errorf("after a refusal the guest has a limit of %.0f", got)
	}
	n.eventually("the container after that", has("CONTAINER_RUNNING"), "inspect", id)
}
