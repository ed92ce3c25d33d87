//go:build integration

// Package template starts VMs as copies of templates that the node's daemon has made, and
// breaks both: what is compared was told by the guests, and by the node's list of starts.
package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const (
	runtimeName = "io.containerd.godwit.v1"
	stepTimeout = 2 * time.Minute
)

// node is one with a daemon.
type node struct {
	*harness.Node
	dir string // of its templates, as seen from the host
}

// newNode is one that makes a template of each shape that was started once.
func newNode(t *testing.T) *node { return nodeWith(t, "[template.boot]\nafter = 1\n") }

func nodeWith(t *testing.T, text string) *node {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP,
		Config: func(*harness.Node) string {
			return text
		}})
	n := h.Node(0)
	n.CheckClean(t)
	return &node{n, filepath.Join(n.Dir, "lib")}
}

// run runs a script in a VM of its own and answers what it wrote.
func (n *node) run(t *testing.T, id, script string, flags ...string) string {
	t.Helper()
	args := append(append([]string{"run", "--rm", "--runtime", runtimeName}, flags...), images.Busybox, id, "sh",
		"-c", script)
	return n.Ctr(t, args...)
}

// started is a line of the node's list.
type started struct {
	Mode    string  `json:"mode"`
	Seconds float64 `json:"seconds"`
	Failed  bool    `json:"failed"`
}

// starts answers how the node's VMs were started, in order.
func (n *node) starts(t *testing.T) []started {
	t.Helper()
	data, err := os.ReadFile(n.path("starts.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var all []started
	for line := range strings.Lines(string(data)) {
		var s started
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// last answers how the last VM was started.
func (n *node) last(t *testing.T) string {
	t.Helper()
	all := n.starts(t)
	if len(all) == 0 {
		t.Fatal("no start was noted")
	}
	if s := all[len(all)-1]; !s.Failed {
		return s.Mode
	}
	return "failed"
}

// path of a file in the node's state_dir.
func (n *node) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.PID()), n.dir, name)
}

// templates answers the keys of those that are there.
func (n *node) templates() []string {
	dirs, _ := filepath.Glob(n.path("templates/*/template.json"))
	var keys []string
	for _, d := range dirs {
		if key := filepath.Base(filepath.Dir(d)); !strings.HasPrefix(key, ".") {
			keys = append(keys, key)
		}
	}
	return keys
}

// made waits until there are so many templates.
func (n *node) made(t *testing.T, count int) {
	t.Helper()
	poll(t, func() error {
		if keys := n.templates(); len(keys) != count {
			return fmt.Errorf("templates are %v, not %d", keys, count)
		}
		return nil
	})
}

func poll(t *testing.T, ask func() error) {
	t.Helper()
	if err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error { return ask() }); err != nil {
		t.Fatal(err)
	}
}

// is fails the test unless the last VM was started that way.
func (n *node) is(t *testing.T, mode string) {
	t.Helper()
	if got := n.last(t); got != mode {
		t.Fatalf("the last start was a %s, not a %s: %v", got, mode, n.starts(t))
	}
}

// facts is what tells one guest from another, each on a line of its own name.
const facts = `echo boot $(cat /proc/sys/kernel/random/boot_id)
echo urandom $(head -c 16 /dev/urandom | od -An -tx1)
echo auxv $(od -An -tx1 /proc/self/auxv | md5sum)
echo stack $(grep -F '[stack]' /proc/self/maps)
echo host $(hostname)
echo date $(date +%s)
echo kib $(df -k / | awk 'END {print $2}')
echo mac $(cat /sys/class/net/eth0/address)
echo address $(ip -4 -o address show eth0 | awk '{print $4}')
echo kernel $(uname -a)`

// own must differ between any two VMs, same must not.
var (
	own  = []string{"boot", "urandom", "auxv", "stack", "mac", "address"}
	same = []string{"kib", "kernel"}
)

// facts runs a VM with a network and answers what it says of itself.
func (n *node) facts(t *testing.T, id string, flags ...string) map[string]string {
	t.Helper()
	told := map[string]string{}
	for line := range strings.Lines(n.run(t, id, facts, append([]string{"--cni"}, flags...)...)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		told[name] = value
	}
	return told
}

// The first VM of a shape boots and its template is made. Later VMs are copies of it, and are
// said to be copies. They share nothing that each VM must have for itself. Copies work two at
// once, with other disks, in a network, asleep and awake again.
func TestCopies(t *testing.T) {
	n := newNode(t)
	booted := n.facts(t, "one")
	n.is(t, "boot")
	n.made(t, 1)
	for _, name := range []string{"template.json", "state", "ram"} {
		info, err := os.Stat(n.path("templates/" + n.templates()[0] + "/" + name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
		t.Logf("%s has %d bytes", name, info.Size())
	}
	all := []map[string]string{booted, nil, nil}
	t.Run("share nothing", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				all[i+1] = n.facts(t, fmt.Sprintf("copy%d", i))
				now, err := strconv.ParseInt(all[i+1]["date"], 10, 64)
				if since := time.Since(time.Unix(now, 0)); err != nil || since < -time.Second || since > stepTimeout {
					t.Errorf("the guest's clock is %v late, %v", since, err)
				}
			})
		}
	})
	n.is(t, "clone")
	if got := n.starts(t); len(got) != 3 || got[1].Mode != "clone" {
		t.Errorf("starts are %v", got)
	}
	for i, a := range all {
		for _, b := range all[:i] {
			for _, name := range own {
				if a[name] == "" || a[name] == b[name] {
					t.Errorf("%s of two VMs: %q, %q", name, a[name], b[name])
				}
			}
			for _, name := range same {
				if a[name] == "" || a[name] != b[name] {
					t.Errorf("%s of a boot and a copy: %q, %q", name, a[name], b[name])
				}
			}
		}
	}
	t.Run("disk of another size", func(t *testing.T) {
		got := n.facts(t, "small", "--annotation", "godwit.dev/writable-size=256MiB")
		n.is(t, "clone")
		kib, err := strconv.Atoi(got["kib"])
		if err != nil || kib < 128<<10 || kib > 256<<10 {
			t.Errorf("the root has %d KiB, %v", kib, err)
		}
	})
	t.Run("sleeps", func(t *testing.T) { testSleep(t, n) })
	t.Run("damaged", func(t *testing.T) { testDamage(t, n) })
}

// A copy goes to sleep and wakes like any other VM: the same boot, the same process.
func testSleep(t *testing.T, n *node) {
	n.Ctr(t, "run", "-d", "--cni", "--runtime", runtimeName, images.Busybox, "sleeper", "sleep", "100000")
	n.is(t, "clone")
	ask := func(id string) string {
		return n.Ctr(t, "task", "exec", "--exec-id", id, "sleeper", "sh", "-c",
			"cat /proc/sys/kernel/random/boot_id /proc/1/cmdline; cut -d' ' -f22 /proc/1/stat")
	}
	before := ask("before")
	n.Godwit(t, "hibernate", "sleeper")
	n.Godwit(t, "wake", "sleeper")
	n.is(t, "restore")
	if after := ask("after"); after != before {
		t.Errorf("before %q, after %q", before, after)
	}
	n.Ctr(t, "task", "rm", "-f", "sleeper")
	n.Ctr(t, "container", "rm", "sleeper")
}

// A template that is damaged costs its VM a boot, nothing more, and is gone.
func testDamage(t *testing.T, n *node) {
	keys := n.templates()
	if len(keys) != 1 {
		t.Fatalf("templates are %v", keys)
	}
	f, err := os.OpenFile(n.path("templates/"+keys[0]+"/ram"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("godwit"), 5<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	n.facts(t, "unhurt")
	n.is(t, "boot")
	if left := n.templates(); len(left) > 0 {
		t.Errorf("templates %v are left", left)
	}
	if why, err := os.ReadFile(n.path("templates/refused/" + keys[0])); err != nil ||
		!strings.Contains(string(why), "damaged") {
		t.Errorf("refused: %q, %v", why, err)
	}
}
