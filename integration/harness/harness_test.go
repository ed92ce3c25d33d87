//go:build integration

package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/images"
)

// Two nodes see each other and the registry, have their own containerd and their own files, and leave nothing.
func TestTwoNodes(t *testing.T) {
	h := New(t, Options{Nodes: 2, Registry: PlainHTTP, Images: true})
	a, b := h.Node(0), h.Node(1)

	for _, n := range h.Nodes() {
		if out := n.Ctr(t, "version"); !strings.Contains(out, "Server:") {
			t.Errorf("ctr version on %s: %s", n.Name, out)
		}
		if out := n.Ctr(t, "plugins", "ls"); strings.Contains(out, "error") {
			t.Errorf("plugins of %s:\n%s", n.Name, out)
		}
		if _, err := n.Run(t.Context(), "busybox", "ping", "-c1", "-W5", Gateway); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{images.Busybox, images.Probe, images.NoEntrypoint} {
		if out := a.Ctr(t, "images", "ls", "-q"); !strings.Contains(out, name) {
			t.Errorf("images on a: %s, want %s", out, name)
		}
	}
	if out := b.Ctr(t, "images", "ls", "-q"); out != "" {
		t.Errorf("images on b: %s, want none", out)
	}

	h.Door.Take()
	begun := time.Now()
	a.Ctr(t, "images", "tag", images.Probe, Repository+"/probe:1")
	a.Ctr(t, "images", "push", "--plain-http", Repository+"/probe:1")
	push, ok := SumPush(h.Door.Take())
	if !ok || push.Bytes < 1<<20 || push.LastBlob.IsZero() {
		t.Errorf("push on the wire: %+v, %t", push, ok)
	}
	// The registry's own times are those of the door, which hears the answer a moment later.
	stored, err := h.Stored(begun)
	if err != nil || stored.LastBlob.After(stored.Manifest) || stored.Manifest.After(push.Manifest) ||
		push.Manifest.Sub(stored.Manifest) > time.Second {
		t.Errorf("push by the registry's files: %+v, %v; at the door %+v", stored, err, push)
	}
	if _, err := h.Stored(time.Now()); err == nil {
		t.Error("a push that is over is one of the time after")
	}
	b.Ctr(t, "images", "pull", "--plain-http", Repository+"/probe:1")

	if _, err := os.Stat(filepath.Join(a.inside("/var"), "marker")); err == nil {
		t.Fatal("marker is there already")
	}
	for _, dir := range []string{"/run", "/etc", "/opt", "/var"} {
		if err := os.WriteFile(a.inside(filepath.Join(dir, "marker")), nil, 0o600); err != nil {
			t.Error(err)
		}
		for _, path := range []string{b.inside(filepath.Join(dir, "marker")), filepath.Join(dir, "marker")} {
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is seen as %s: %v", dir, path, err)
			}
		}
	}
}

// CNI's bridge gives distinct addresses on both nodes of the one subnet, and the address
// of the other node on request.
func TestCNIAddresses(t *testing.T) {
	h := New(t, Options{Nodes: 2})
	add := func(n *Node, name, args string) string {
		t.Helper()
		conf, err := os.ReadFile(n.inside("/etc/cni/net.d/10-godwit.conflist"))
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Plugins []map[string]any `json:"plugins"`
		}
		if err := json.Unmarshal(conf, &list); err != nil {
			t.Fatal(err)
		}
		plugin := list.Plugins[0]
		plugin["name"], plugin["cniVersion"] = "godwit", "1.0.0"
		stdin, err := json.Marshal(plugin)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Run(t.Context(), "ip", "netns", "add", name); err != nil {
			t.Fatal(err)
		}
		cmd := n.Command(t.Context(), "/opt/cni/bin/bridge")
		cmd.Env = append(cmd.Env, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+name, "CNI_NETNS=/run/netns/"+name,
			"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_ARGS="+args)
		cmd.Stdin = strings.NewReader(string(stdin))
		var out strings.Builder
		cmd.Stdout = &out
		if err := n.Enter(cmd.Start); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("bridge: %v: %s", err, out.String())
		}
		var result struct {
			IPs []struct{ Address string }
		}
		if err := json.Unmarshal([]byte(out.String()), &result); err != nil {
			t.Fatal(err)
		}
		return result.IPs[0].Address
	}
	for _, c := range []struct {
		node       int
		name, args string
		want       string
	}{
		{0, "one", "", "10.88.1.10/16"},
		{1, "one", "", "10.88.2.10/16"},
		{1, "two", "IgnoreUnknown=1;IP=10.88.1.10", "10.88.1.10/16"},
	} {
		if got := add(h.Node(c.node), c.name, c.args); got != c.want {
			t.Errorf("address of %s on node %d: %s, want %s", c.name, c.node, got, c.want)
		}
	}
}

// The registry with TLS wants credentials, and the door can fail any request.
func TestRegistryTLSAndFaults(t *testing.T) {
	h := New(t, Options{Registry: TLSBasicAuth})
	pem, err := os.ReadFile(filepath.Join(h.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no CA")
	}
	client := &http.Client{Transport: &http.Transport{DialContext: h.Dial, TLSClientConfig: &tls.Config{RootCAs: pool},
		DisableKeepAlives: true}}
	status := func(password string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+RegistryHost+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			req.SetBasicAuth(User, password)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for password, want := range map[string]int{Password: 200, "wrong": 401, "": 401} {
		if got := status(password); got != want {
			t.Errorf("password %q: %d, want %d", password, got, want)
		}
	}
	h.Door.SetFault(func(n int, _ *http.Request) Fault {
		if n == 2 {
			return Fault{Status: 500}
		}
		return Fault{}
	})
	for i, want := range []int{200, 500, 200} {
		if got := status(Password); got != want {
			t.Errorf("request %d: %d, want %d", i+1, got, want)
		}
	}
}

// An inventory sees what a VM could leave.
func TestInventorySees(t *testing.T) {
	h := New(t, Options{})
	n := h.Node(0)
	before, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Clean(t.Context(), before); err != nil {
		t.Fatalf("nothing was done: %v", err)
	}
	sleep := n.Command(context.WithoutCancel(t.Context()), "sleep", "1000")
	if err := n.Enter(sleep.Start); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"ip", "tuntap", "add", "tap0", "mode", "tap"}, {"ip", "netns", "add", "left"},
		{"mkdir", n.Dir + "/left"}, {"mount", "-t", "tmpfs", "tmpfs", n.Dir + "/left"}, {"mkdir", "-p", n.Dir + "/ram"},
		{"touch", n.Dir + "/ram/file"},
	} {
		if _, err := n.Run(t.Context(), args[0], args[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	after, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(after.Since(before), "\n")
	for _, want := range []string{"sleep 1000", "link tap0", "file /run/netns/left", "mount " + n.Dir + "/left",
		"file " + n.Dir + "/ram/file"} {
		if !strings.Contains(got, want) {
			t.Errorf("inventory misses %q:\n%s", want, got)
		}
	}
	if err := sleep.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Wait()
}

// Nodes share no cgroup, and leave none on the host.
func TestCgroups(t *testing.T) {
	h := New(t, Options{Nodes: 2})
	a, b := h.Node(0), h.Node(1)
	before, err := b.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	for _, tree := range all {
		dir := filepath.Join(tree.path, "default", "vm")
		if _, err := a.Run(t.Context(), "mkdir", "-p", dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(tree.path, h.cgroup("a"), "default", "vm")); err != nil {
			t.Errorf("made in the node: %v", err)
		}
		if _, err := os.Stat(a.Cgroup(strings.TrimPrefix(dir, "/sys/fs/cgroup"))); err != nil {
			t.Error(err)
		}
		after, err := b.Inventory(t.Context())
		if more := after.Since(before); err != nil || len(more) > 0 {
			t.Errorf("seen on the other node: %v, %v", more, err)
		}
		if after, err = a.Inventory(t.Context()); err != nil || !slices.Contains(after, "cgroup "+dir) {
			t.Errorf("not seen on the node: %v, %v", after, err)
		}
		if err := removeTree(a.Cgroup(strings.TrimPrefix(filepath.Dir(dir), "/sys/fs/cgroup"))); err != nil {
			t.Error(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tree := range all {
		if _, err := os.Stat(filepath.Join(tree.path, h.cgroup("a"))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left on the host: %v", err)
		}
	}
}

// Close ends every process, also one that ignores SIGTERM, and removes all files.
func TestCloseLeavesNothing(t *testing.T) {
	h, err := Start(t.Context(), Options{Registry: PlainHTTP})
	if err != nil {
		t.Fatal(err)
	}
	stubborn := h.Node(0).Command(context.WithoutCancel(t.Context()), "sh", "-c",
		"trap '' TERM; while :; do sleep 1; done")
	if err := h.Node(0).Enter(stubborn.Start); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { _ = stubborn.Wait(); close(gone) }()
	pids := []int{h.Node(0).PID(), h.Node(0).Containerd.PID(), h.wire.pid()}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("a process outlived its node")
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
	if _, err := os.Stat(h.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", h.Dir, err)
	}
	if err := h.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestListenOnWire(t *testing.T) {
	h := New(t, Options{})
	l, err := h.Listen(net.JoinHostPort(Gateway, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "wire")
			c.Close()
		}
	}()
	c, err := h.Dial(t.Context(), "tcp", net.JoinHostPort(Gateway, "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "wire" {
		t.Errorf("read %q, %v", b, err)
	}
}

// In the ground a look leaves the VM two thirds of the time; elsewhere it waits as long as it is told.
func TestPause(t *testing.T) {
	for _, tt := range []struct {
		ground            string
		least, took, want time.Duration
	}{
		{"", time.Second, 3 * time.Second, time.Second},
		{"nested", time.Second, 3 * time.Second, 6 * time.Second},
		{"nested", time.Second, time.Millisecond, time.Second},
	} {
		t.Setenv("GODWIT_GROUND", tt.ground)
		if got := Pause(tt.least, tt.took); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
