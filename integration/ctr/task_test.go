//go:build integration

package ctr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// echo is an init that answers each line of its stdin and ends with 33 on SIGTERM.
const echo = `trap "exit 33" TERM; while read line; do echo "said $line"; done; exit 44`

// The commands of `ctr task` on one VM through its life, and the events they cause.
func TestTask(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	events := watchEvents(t, n)
	detached(t, n, images.Busybox, "vm", "sh", "-c", echo)
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Node)
	}{
		{"attach", testAttach},
		{"exec", testExec},
		{"exec many", testExecMany},
		{"exec terminal", testExecTerminal},
		{"kill exec", testKillExec},
		{"ps and metrics", testObserve},
		{"pause", testPause},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, n) })
	}
	t.Run("events", func(t *testing.T) {
		checkEvents(t, events, "vm", "/tasks/create", "/tasks/start", "/tasks/paused", "/tasks/resumed")
	})
	t.Run("containerd restarted", func(t *testing.T) { testRestart(t, n) })
	events = watchEvents(t, n)
	t.Run("end", func(t *testing.T) { testEnd(t, n, events) })
	t.Run("created and paused", func(t *testing.T) { testCreated(t, n) })
}

func testAttach(t *testing.T, n *harness.Node) {
	for _, line := range []string{"first", "second"} {
		r, w := io.Pipe()
		defer w.Close()
		c := start(t, n, r, "task", "attach", "vm")
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			t.Fatal(err)
		}
		c.stdout.says(t, "said "+line+"\n")
		// Detach without a word, as a lost terminal does.
		if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.Close()
		c.wait(t)
		running(t, n, "vm", "RUNNING")
	}
}

// running checks what `ctr task ls` says of a task.
func running(t *testing.T, n *harness.Node, vm, status string) (pid string) {
	t.Helper()
	out := n.Ctr(t, "task", "ls")
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == vm {
			if f[2] != status {
				t.Errorf("task %s is %s, want %s", vm, f[2], status)
			}
			return f[1]
		}
	}
	if status != "" {
		t.Errorf("no task %s:\n%s", vm, out)
	}
	return ""
}

func testExec(t *testing.T, n *harness.Node) {
	for i, c := range []struct {
		name, text string
		flags      []string
		stdin      string
		want       result
	}{
		{name: "0", text: "echo out; echo err >&2", want: result{"out\n", "err\n", 0}},
		{name: "1", text: "exit 1", want: result{code: 1}},
		{name: "42", text: "exit 42", want: result{code: 42}},
		{name: "127", text: "nothing-of-this-name", want: result{"", "not found", 127}},
		{name: "255", text: "exit 255", want: result{code: 255}},
		{name: "signal", text: "kill -SEGV $$", want: result{code: 139}},
		{name: "user", text: "id -un; id -Gn", flags: []string{"--user", "1000:50"}, want: result{out: "guest\nstaff\n"}},
		{name: "cwd", text: "pwd", flags: []string{"--cwd", "/tmp"}, want: result{out: "/tmp\n"}},
		{name: "stdin", text: "cat; echo end", stdin: "line\n", want: result{out: "line\nend\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctr(t, n, strings.NewReader(c.stdin), execArgs("vm", fmt.Sprintf("e%d", i), c.text, c.flags...)...).want(t, c.want)
		})
	}
	t.Run("not found", func(t *testing.T) {
		got := ctr(t, n, nil, "task", "exec", "--exec-id", "nothing", "vm", "/bin/nothing")
		got.want(t, result{"", "/bin/nothing", 1})
		t.Log(got.errs)
	})
	t.Run("directory not found", func(t *testing.T) {
		got := ctr(t, n, nil, execArgs("vm", "nowhere", "true", "--cwd", "/nowhere")...)
		got.want(t, result{"", "/nowhere", 1})
		t.Log(got.errs)
	})
}

// Many at once have their own output and exit code each.
func testExecMany(t *testing.T, n *harness.Node) {
	var all []*command
	for i := range 12 {
		all = append(all, start(t, n, nil, execArgs("vm", fmt.Sprintf("m%d", i), fmt.Sprintf("echo %d; exit %d", i, i))...))
	}
	for i, c := range all {
		c.wait(t).want(t, result{fmt.Sprintf("%d\n", i), "", i})
	}
}

func testExecTerminal(t *testing.T, n *harness.Node) {
	// ctr tells the size when the exec runs already; without one stty succeeds, saying nothing.
	term := onTerminal(t, n, 33, 77, "task", "exec", "-t", "--exec-id", "term", "vm", "sh", "-c",
		`until [ "$(stty size 2>/dev/null)" ]; do :; done; stty size; cat`)
	term.stdout.says(t, "33 77\r")
	term.types(t, "\x03")
	if got := term.wait(t); got.code != 130 {
		t.Errorf("exit code %d after ctrl-C, want 130: %s", got.code, got.out)
	}
}

func testKillExec(t *testing.T, n *harness.Node) {
	c := start(t, n, nil, execArgs("vm", "killed", "echo ready; exec sleep 1000")...)
	c.stdout.says(t, "ready")
	n.Ctr(t, "task", "kill", "-s", "SIGUSR1", "--exec-id", "killed", "vm")
	c.wait(t).want(t, result{"ready\n", "", 128 + int(syscall.SIGUSR1)})
	ctr(t, n, nil, "task", "kill", "--exec-id", "killed", "vm").want(t, result{"", "not found", 1})
}

func testObserve(t *testing.T, n *harness.Node) {
	pid := running(t, n, "vm", "RUNNING")
	if out := n.Ctr(t, "task", "ps", "vm"); !strings.Contains(out, pid) {
		t.Errorf("ps does not name pid %s: %s", pid, out)
	}
	testPids(t, n, pid)
	testMetrics(t, n)
}

// testPids: the task's own pid comes first. An exec, its child and nothing else follow, under ids that no
// process of the host has.
func testPids(t *testing.T, n *harness.Node, own string) {
	t.Helper()
	c := start(t, n, nil, execArgs("vm", "parent",
		`sleep 1000 & trap "kill $!; exit 3" TERM; echo ready; wait`)...)
	c.stdout.says(t, "ready")
	fields := strings.Fields(n.Ctr(t, "task", "ps", "vm")) // PID INFO, and a dash or the exec of each
	fields = slices.DeleteFunc(fields, func(f string) bool { _, err := strconv.Atoi(f); return err != nil })
	if len(fields) < 3 || fields[0] != own {
		t.Errorf("ps lists %v, the task is %s", fields, own)
	}
	for _, f := range fields[1:] {
		if pid, _ := strconv.Atoi(f); pid <= 4194304 {
			t.Errorf("ps lists pid %s, which the host may have", f)
		}
	}
	n.Ctr(t, "task", "kill", "-s", "SIGTERM", "--exec-id", "parent", "vm")
	c.wait(t).want(t, result{"ready\n", "", 3})
}

// testMetrics reads what ctr prints, which has the shape of the host's version of cgroups.
func testMetrics(t *testing.T, n *harness.Node) {
	t.Helper()
	var one struct {
		Memory struct{ Usage struct{ Usage uint64 } }
		CPU    struct{ Usage struct{ Total uint64 } }
		Pids   struct{ Current uint64 }
	}
	var two struct {
		Memory struct{ Usage uint64 }
		CPU    struct {
			Usage uint64 `json:"usage_usec"`
		}
		Pids struct{ Current uint64 }
	}
	unified := cgroups.Mode() == cgroups.Unified
	var into any = &one
	if unified {
		into = &two
	}
	out := n.Ctr(t, "task", "metrics", "--format", "json", "vm")
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	memory, cpu, pids := one.Memory.Usage.Usage, one.CPU.Usage.Total, one.Pids.Current
	if unified {
		memory, cpu, pids = two.Memory.Usage, two.CPU.Usage, two.Pids.Current
	}
	if memory == 0 || cpu == 0 || pids == 0 {
		t.Errorf("memory %d, CPU %d, processes %d: %s", memory, cpu, pids, out)
	}
}

func testPause(t *testing.T, n *harness.Node) {
	n.Ctr(t, "task", "pause", "vm")
	running(t, n, "vm", "PAUSED")
	got := ctr(t, n, nil, execArgs("vm", "refused", "true")...)
	got.want(t, result{"", "paused", 1})
	t.Log(got.errs)
	ctr(t, n, nil, "task", "pause", "vm").want(t, result{"", "paused", 1})
	ctr(t, n, nil, "task", "delete", "vm").want(t, result{"", "paused", 1})
	testMetrics(t, n)
	n.Ctr(t, "task", "resume", "vm")
	running(t, n, "vm", "RUNNING")
	ctr(t, n, nil, "task", "resume", "vm").want(t, result{"", "running", 1})
	ctr(t, n, nil, execArgs("vm", "thawed", "echo well")...).want(t, result{"well\n", "", 0})
}

// A VM does not notice that containerd was killed, and containerd finds it again.
func testRestart(t *testing.T, n *harness.Node) {
	pid := running(t, n, "vm", "RUNNING")
	if err := n.Containerd.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := running(t, n, "vm", "RUNNING"); again != pid {
		t.Errorf("pid %s, it was %s", again, pid)
	}
	ctr(t, n, nil, execArgs("vm", "after", "exit 5")...).want(t, result{"", "", 5})
	testAttach(t, n)
}

// The end is told once, to everybody, and what comes too late is told so.
func testEnd(t *testing.T, n *harness.Node, events *command) {
	ctx := namespaces.WithNamespace(t.Context(), "default")
	task := load(ctx, t, n, "vm")
	var waits []<-chan client.ExitStatus
	for range 8 {
		w, err := task.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, w)
	}
	ctr(t, n, nil, "task", "delete", "vm").want(t, result{"", "running", 1})
	n.Ctr(t, "task", "kill", "-s", "SIGTERM", "vm")
	for _, w := range waits {
		if s := <-w; s.ExitCode() != 33 || s.Error() != nil {
			t.Errorf("wait: code %d, %v", s.ExitCode(), s.Error())
		}
	}
	running(t, n, "vm", "STOPPED")
	for range 2 {
		ctr(t, n, nil, "task", "kill", "-s", "SIGKILL", "vm").want(t, result{"", "not found", 1})
	}
	ctr(t, n, nil, execArgs("vm", "late", "true")...).want(t, result{"", "stopped", 1})
	ctr(t, n, nil, "task", "pause", "vm").want(t, result{"", "stopped", 1})
	testStopped(ctx, t, task)
	got := ctr(t, n, nil, "task", "delete", "vm")
	t.Logf("ctr task delete: %+v", got)
	ctr(t, n, nil, "task", "delete", "vm").want(t, result{"", "not found", 1})
	n.Ctr(t, "container", "rm", "vm")
	checkEvents(t, events, "vm", "/tasks/exit", "/tasks/delete")
}

// testStopped checks that the end stays known until Delete.
func testStopped(ctx context.Context, t *testing.T, task client.Task) {
	t.Helper()
	w, err := task.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s := <-w; s.ExitCode() != 33 {
		t.Errorf("a wait after the end: %d, %v", s.ExitCode(), s.Error())
	}
	if _, err := task.Metrics(ctx); err != nil {
		t.Errorf("metrics after the end: %v", err)
	}
}

func load(ctx context.Context, t *testing.T, n *harness.Node, id string) client.Task {
	t.Helper()
	c, err := client.New(n.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	container, err := c.LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	task, err := container.Task(ctx, nil)
	if err == nil {
		return task
	}
	// None yet: make one. ctr has no command for this.
	task, err = container.NewTask(ctx, cio.NullIO)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// A task that was created only, and one that was paused, can be removed.
func testCreated(t *testing.T, n *harness.Node) {
	ctx := namespaces.WithNamespace(t.Context(), "default")
	n.Ctr(t, "container", "create", "--runtime", runtimeName, images.Busybox, "other", "sleep", "1000")
	load(ctx, t, n, "other")
	running(t, n, "other", "CREATED")
	ctr(t, n, nil, "task", "pause", "other").want(t, result{"", "created", 1})
	// containerd's client itself refuses this one.
	ctr(t, n, nil, "task", "delete", "other").want(t, result{"", "created", 1})
	if got := ctr(t, n, nil, "task", "delete", "--force", "other"); got.code != 0 && got.code != 137 {
		t.Errorf("delete --force of a created task: %+v", got)
	}
	running(t, n, "other", "")

	n.Ctr(t, "task", "start", "-d", "--null-io", "other")
	n.Ctr(t, "task", "pause", "other")
	n.Ctr(t, "task", "kill", "-s", "SIGKILL", "other")
	err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		if out := n.Ctr(t, "task", "ls"); !strings.Contains(out, "STOPPED") {
			return errors.New(out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Ctr(t, "container", "create", "--runtime", runtimeName, images.Busybox, "third", "sleep", "1000")
	n.Ctr(t, "task", "start", "-d", "--null-io", "third")
	for _, vm := range []string{"other", "third"} {
		if got := ctr(t, n, nil, "task", "delete", "--force", vm); got.code != 0 && got.code != 137 {
			t.Errorf("delete --force %s: %+v", vm, got)
		}
		n.Ctr(t, "container", "rm", vm)
	}
}
