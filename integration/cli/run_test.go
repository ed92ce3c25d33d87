//go:build integration

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// bridgeConf is a network that publishes ports.
const bridgeConf = `{"cniVersion": "1.0.0", "name": "published", "plugins": [
  {"type": "bridge", "bridge": "published0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local",
   "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// day is a node on which a user works.
type day struct {
	*testing.T
	n *harness.Node
	h *harness.Harness
}

// fails runs godwit, which ends with a code and says words.
func (d *day) fails(code int, words string, args ...string) {
	d.Helper()
	out, err := d.n.RunGodwit(d.Context(), args...)
	run, ok := errors.AsType[*harness.RunError](err)
	if !ok || run.Code() != code || !strings.Contains(out+run.Stderr, words) {
		d.Errorf("godwit %s: %v (%s); want exit code %d and %q", strings.Join(args, " "), err, out, code, words)
	}
}

// says runs godwit, which succeeds and prints words.
func (d *day) says(words string, args ...string) string {
	d.Helper()
	out := d.n.Godwit(d, args...)
	if !strings.Contains(out, words) {
		d.Fatalf("godwit %s: %q, want %q", strings.Join(args, " "), out, words)
	}
	return out
}

// empty wants that containerd has nothing that a run makes.
func (d *day) empty() {
	d.Helper()
	for what, args := range map[string][]string{"containers": {"containers", "ls", "-q"},
		"leases": {"leases", "ls", "-q"}} {
		if out := d.n.Ctr(d, args...); out != "" {
			d.Errorf("%s are left: %s", what, out)
		}
	}
	for line := range strings.Lines(d.n.Ctr(d, "snapshots", "ls")) {
		if strings.Contains(line, "Active") {
			d.Errorf("a snapshot is left: %s", line)
		}
	}
}

// log waits until the output of a VM is as a check wants it.
func (d *day) log(name string, check func(string) bool) {
	d.Helper()
	path := filepath.Join(d.h.Dir, "log", "a-default-"+name+".log")
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil && check(string(text)) {
			return
		}
		if time.Since(begun) > 2*time.Minute {
			d.Fatalf("log of %s: %q, %v", name, text, err)
		}
	}
}

// TestDayOfAVM runs, stops, starts, renames and removes VMs as a docker user does, with docker's exit codes; what fails
// leaves nothing.
func TestDayOfAVM(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP,
		Config: func(*harness.Node) string {
			return "[logs]\nmax_bytes = \"1MiB\"\nfiles = 3\n"
		}})
	d := &day{t, h.Node(0), h}
	t.Run("foreground", func(t *testing.T) { (&day{t, d.n, h}).foreground() })
	t.Run("detached", func(t *testing.T) { (&day{t, d.n, h}).detached() })
	t.Run("rotation", func(t *testing.T) { (&day{t, d.n, h}).rotation() })
	t.Run("kept disk", func(t *testing.T) { (&day{t, d.n, h}).keptDisk() })
	t.Run("interrupted", func(t *testing.T) { (&day{t, d.n, h}).interrupted() })
	d.empty()
}

func (d *day) foreground() {
	d.fails(7, "one two", "run", "--rm", "-e", "X=two", images.Busybox, "sh", "-c", "echo one $X; exit 7")
	d.says("10.", "run", "--rm", "--name", "addressed", images.Busybox, "ip", "-4", "addr")
	d.fails(127, "/none", "run", "--rm", images.Busybox, "/none")
	d.fails(126, "/etc", "run", "--rm", images.Busybox, "/etc")
	d.fails(125, "--no-such", "run", "--no-such", images.Busybox)
	d.fails(125, "portmap", "run", "-p", "8080:80", images.Busybox)
	d.fails(125, ":copy", "run", "-v", "/etc:/x", images.Busybox)
	d.fails(125, "godwit pull", "run", "--pull", "never", "no.example/none")
	d.says("root:", "run", "--rm", "-v", "/etc/passwd:/p:ro", images.Busybox, "cat", "/p")
	d.empty()
}

func (d *day) detached() {
	conf := filepath.Join(d.n.Root(), "/etc/cni/net.d/05-published.conflist")
	if err := os.WriteFile(conf, []byte(bridgeConf), 0o600); err != nil {
		d.Fatal(err)
	}
	d.says("web\n", "run", "-d", "--name", "web", "-p", "8080:80", "-m", "64m", images.Busybox, "sh", "-c",
		"test -e /kept && echo kept; touch /kept; sync; echo up; nc -ll -p 80 -e echo eighty & trap 'exit 3' TERM; "+
			"while :; do sleep 1; done")
	d.log("web", func(s string) bool { return strings.HasPrefix(s, "up\n") })
	d.fails(125, "The name web is taken", "run", "-d", "--name", "web", images.Busybox)
	d.fails(125, "port 8080 of the host is", "run", "-d", "--name", "other", "-p", "8080:80", images.Busybox)
	d.fails(4, "already", "start", "web")
	d.says("80/tcp -> 0.0.0.0:8080\n", "port", "web")
	d.reached("8080", "eighty\n")
	out, err := d.n.Run(d.Context(), "nerdctl", "--address", d.n.Socket, "ps", "--format", "{{.Names}} {{.Ports}}")
	if err != nil || out != "web 0.0.0.0:8080->80/tcp\n" {
		d.Errorf("nerdctl ps: %q, %v", out, err)
	}
	d.says("web\n", "stop", "-t", "60", "web")
	d.says("web\n", "start", "web")
	d.log("web", func(s string) bool { return strings.HasSuffix(s, "kept\nup\n") })
	d.says("", "rename", "web", "shop")
	d.fails(4, "godwit rm --force", "rm", "shop")
	d.says("shop\n", "kill", "-s", "KILL", "shop")
	d.says("shop\n", "restart", "shop")
	d.says("removed", "rm", "-f", "shop")
	d.fails(3, "no VM", "start", "shop")
	if err := os.Remove(conf); err != nil {
		d.Error(err)
	}
	d.empty()
}

// reached wants a text from a port that the node publishes, as soon as the VM's program listens.
func (d *day) reached(port, want string) {
	d.Helper()
	dial := func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), time.Minute)
		if err != nil {
			return err
		}
		defer conn.Close()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
			return fmt.Errorf("it says %q: %w", got, err)
		}
		return nil
	}
	err := harness.Poll(d.Context(), time.Minute, func(context.Context) error { return d.n.Enter(dial) })
	if err != nil {
		d.Errorf("port %s: %v", port, err)
	}
}

// rotation: the log of a VM that talks is bounded, in files of its own.
func (d *day) rotation() {
	d.says("talks\n", "run", "-d", "--name", "talks", images.Busybox, "sh", "-c", "seq 1 700000; echo done; sleep 1000")
	d.log("talks", func(s string) bool { return strings.HasSuffix(s, "done\n") })
	for i, name := range []string{"", ".1", ".2", ".3"} {
		info, err := os.Stat(filepath.Join(d.h.Dir, "log", "a-default-talks.log"+name))
		if kept := i < 3; kept != (err == nil) || kept && info.Size() > 1<<20 {
			d.Errorf("log%s: %v, %v", name, info, err)
		}
	}
	d.says("removed", "rm", "-f", "talks")
}

// keptDisk: what a VM has written is there after stop and start, whatever the snapshotter, and after a wake before.
func (d *day) keptDisk() {
	const script = "test -e /kept && echo kept || echo fresh; touch /kept; sync; echo up; trap 'exit 0' TERM; " +
		"while :; do sleep 1; done"
	ends := func(name, words string) { d.log(name, func(s string) bool { return strings.HasSuffix(s, words) }) }
	d.says("native\n", "run", "-d", "--name", "native", "--snapshotter", "native", images.Busybox, "sh", "-c", script)
	ends("native", "fresh\nup\n")
	d.says("native\n", "stop", "native")
	d.says("native\n", "start", "native")
	ends("native", "kept\nup\n")
	d.says("removed", "rm", "-f", "native")
	d.says("woken\n", "run", "-d", "--name", "woken", images.Busybox, "sh", "-c", script)
	ends("woken", "fresh\nup\n")
	d.says("sleeps", "hibernate", "woken")
	d.fails(4, "godwit wake woken", "start", "woken")
	d.fails(125, "godwit wake woken", "run", "--name", "woken", images.Busybox)
	d.says("runs on", "wake", "woken")
	d.says("woken\n", "stop", "woken")
	d.says("woken\n", "start", "woken")
	ends("woken", "fresh\nup\nkept\nup\n")
	d.says("removed", "rm", "-f", "woken")
	d.keptElsewhere(script)
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) { // godwitd hears that the containers are gone
		left, _ := filepath.Glob(filepath.Join(d.n.StateDir(), "disks", "default", "*"))
		if len(left) == 0 {
			return
		}
		if time.Since(begun) > time.Minute {
			d.Fatalf("disks of removed containers: %v", left)
		}
	}
}

// keptElsewhere: a VM that wakes where containerd has neither its container nor its snapshot, as after a move, has its
// disk after stop and start.
func (d *day) keptElsewhere(script string) {
	d.says("came\n", "run", "-d", "--name", "came", images.Busybox, "sh", "-c", script)
	d.log("came", func(s string) bool { return strings.HasSuffix(s, "up\n") })
	d.says("", "exec", "came", "sh", "-c", "echo mine > /own; sync")
	d.says("", "rename", "came", "guest")
	d.says("sleeps", "hibernate", "guest")
	d.fails(4, "godwit wake", "rename", "guest", "other")
	d.n.Ctr(d, "containers", "rm", "came")
	d.says("guest", "ps", "-a")
	d.says("runs on", "wake", "guest")
	if info := d.n.Ctr(d, "containers", "info", "came"); !strings.Contains(info, `"nerdctl/name": "guest"`) {
		d.Errorf("the name is lost: %s", info)
	}
	d.says("", "exec", "guest", "sh", "-c", "echo more >> /own; sync")
	d.says("", "stop", "guest")
	d.says("", "start", "guest")
	d.says("mine\nmore\n", "exec", "guest", "cat", "/own")
	d.says("", "stop", "guest")
	d.anotherContainer("came")
	d.says("removed", "rm", "-f", "came")
}

// interrupted: Ctrl-C in a pull from a registry that stalls, and before a VM runs, leaves nothing.
func (d *day) interrupted() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	var stalled string
	if err == nil {
		stalled = l.Addr().String()
		_ = l.Close()
	}
	_ = d.n.Enter(func() error { l, err = net.Listen("tcp", stalled); return err })
	if err != nil {
		d.Fatal(err)
	}
	defer l.Close()
	d.interrupt(func() bool { // the registry has been asked
		conn, err := l.Accept()
		return err == nil && conn != nil
	}, 130, "pull", stalled+"/x:1")
	d.empty()
	d.interrupt(func() bool { // there is a container
		return strings.Contains(d.n.Ctr(d, "containers", "ls", "-q"), "late")
	}, 130, "run", "-d", "--name", "late", images.Busybox, "sleep", "1000")
	d.empty()
}

// interrupt gives godwit a SIGINT once it is so far.
func (d *day) interrupt(far func() bool, code int, args ...string) {
	d.Helper()
	var said strings.Builder
	cmd := d.n.Command(context.WithoutCancel(d.Context()), "godwit", append([]string{"--config", d.n.Config}, args...)...)
	cmd.Stderr = &said
	if err := d.n.Enter(cmd.Start); err != nil {
		d.Fatal(err)
	}
	for begun := time.Now(); !far() && time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		d.Error(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != code {
		d.Errorf("godwit %s: exit code %d, want %d: %s", strings.Join(args, " "), got, code, &said)
	}
}
