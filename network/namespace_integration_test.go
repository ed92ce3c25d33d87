//go:build integration

package network

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestNamespace(t *testing.T) {
	ns := newNS(t, "n")
	if got := sh(t, ns, "ip", "-o", "link", "show", "lo"); !strings.Contains(got, ",UP") {
		t.Errorf("loopback: %s", got)
	}
	if err := NewGuestNamespace(ns); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second namespace in one place: %v", err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	there := ""
	boom := errors.New("boom")
	err = Do(ns, func() (err error) {
		there, err = os.Readlink("/proc/thread-self/ns/net")
		return errors.Join(err, boom)
	})
	if !errors.Is(err, boom) || there == "" || there == own {
		t.Errorf("Do: %v in %s, outside %s", err, there, own)
	}
	for range 200 { // no thread stays in there
		Do(ns, func() error { return nil })
		here, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil || here != own {
			t.Fatalf("this thread is in %s: %v", here, err)
		}
	}
	// Do returns before its thread has ended: one in there is on its way out, or it stays.
	eventually(t, "no thread in the namespace", func() bool { return len(threadsIn(there)) == 0 })
	for path, want := range map[string]bool{"": true, "/proc/self/ns/net": true, ns: false} {
		if got, err := IsHost(path); err != nil || got != want {
			t.Errorf("IsHost(%q) = %v, %v", path, got, err)
		}
	}
	if _, err := IsHost("/proc/self/ns/mnt"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a mount namespace: %v", err)
	}
	if err := Do(t.TempDir()+"/none", func() error { return nil }); !errdefs.IsNotFound(err) {
		t.Errorf("no namespace: %v", err)
	}
	for range 2 {
		if err := DeleteNamespace(ns); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(ns); !os.IsNotExist(err) {
		t.Errorf("file left: %v", err)
	}
}

// threadsIn names the threads of this process that are in the network namespace.
func threadsIn(namespace string) (in []string) {
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at == namespace {
			in = append(in, task)
		}
	}
	return in
}

// The pid of Create is a process that lives there.
func TestProcessStaysInNamespace(t *testing.T) {
	ns := newNS(t, "n")
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	got, err := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net")
	want := strings.TrimSpace(sh(t, ns, "readlink", "/proc/self/ns/net"))
	if err != nil || got != want {
		t.Errorf("process in %s, %v; want %s", got, err, want)
	}
	io.WriteString(in, "x")
}

func TestReadEmptyNamespace(t *testing.T) {
	ns := newNS(t, "n")
	if links := mustRead(t, ns); len(links) != 0 {
		t.Errorf("links: %+v", links)
	}
	a, err := Attach(t.Context(), ns, owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []error{a.Up(t.Context()), a.Announce(t.Context()), a.Down(t.Context()), a.Detach(t.Context())} {
		if f != nil {
			t.Error(f)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	tests := map[string]struct{ setup, want string }{
		"no ethernet": {`ip tuntap add dev point0 mode tun
			ip link set point0 up`, "point0"},
		"foreign ingress": {`ip link add e0 type veth peer name e1
			ip link set e1 up
			tc qdisc add dev e1 ingress`, "e1"},
		"foreign clsact": {`ip link add e0 type veth peer name e1
			ip link set e1 up
			tc qdisc add dev e1 clsact`, "e1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ns := newNS(t, "n")
			script(t, ns, tt.setup)
			_, err := Read(t.Context(), ns)
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestAttachRefusesTheHost(t *testing.T) {
	for _, path := range []string{"", "/proc/self/ns/net"} {
		if _, err := Attach(t.Context(), path, owner, nil); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("Attach in %q: %v", path, err)
		}
	}
}

func TestReadNames(t *testing.T) {
	ns := newNS(t, "n")
	script(t, ns, `
		ip link add tap0 type veth peer name idle
		ip link set tap0 up
		ip link add net1 type veth peer name idle1
		ip link set net1 up`)
	var got []string
	for _, l := range mustRead(t, ns) {
		got = append(got, l.NIC.ID+" "+l.NIC.Name+" "+l.Tap)
	}
	if diff := cmp.Diff([]string{"net0 tap0 tap1", "net1 net1 tap2"}, got); diff != "" {
		t.Error(diff)
	}
}

// Taps without an owner go, and the interface is free for the next VM. One that a process has open stays, though its
// owner is not known here.
func TestOrphans(t *testing.T) {
	f := newFabric(t, 1, 1500)
	a, links := f.attach(t, 0)
	sh(t, f.nodes[0], "ip", "tuntap", "add", "dev", "foreign", "mode", "tap")
	var asked []Owner
	keep := func(o Owner) bool { asked = append(asked, o); return true }
	if got, err := Orphans(t.Context(), f.nodes[0], keep); err != nil || len(got) != 0 {
		t.Errorf("known: %v, %v", got, err)
	}
	if diff := cmp.Diff([]Owner{owner}, asked); diff != "" {
		t.Error(diff)
	}
	none := func(Owner) bool { return false }
	if got, err := Orphans(t.Context(), f.nodes[0], none); err != nil || len(got) != 0 ||
		!slices.Contains(interfaces(t, f.nodes[0]), links[0].Tap) {
		t.Errorf("open: %v, %v", got, err)
	}
	a.Close()
	got, err := Orphans(t.Context(), f.nodes[0], none)
	if diff := cmp.Diff([]Owner{owner}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got := interfaces(t, f.nodes[0]); !slices.Equal(got, []string{"lo", "eth0", "foreign"}) {
		t.Errorf("left: %v", got)
	}
	if got := sh(t, f.nodes[0], "tc", "qdisc", "show", "dev", "eth0"); strings.Contains(got, "ingress") {
		t.Errorf("redirect left: %s", got)
	}
	if err := Detach(t.Context(), f.nodes[0], links); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(links[0].NIC, mustRead(t, f.nodes[0])[0].NIC, netComparers); diff != "" {
		t.Errorf("NIC read again:\n%s", diff)
	}
}
