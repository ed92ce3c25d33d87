//go:build integration

package move

import (
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// A node that was told nothing wakes a VM of some size while its RAM comes, and says so and why.
func TestAutoRestore(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 1, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	watch := listen(t, h)
	address := boot(t, n, watch, "--annotation", "godwit.dev/memory=768MiB", "--mount",
		"type=tmpfs,src=tmpfs,dst=/soft,options=size=400m").From
	shell := func(id, command string) string {
		t.Helper()
		return n.Ctr(t, "task", "exec", "--exec-id", id, vm, "/bin/busybox", "sh", "-c", command)
	}
	const end = "/bin/busybox tail -c 1048576 /soft/all | /bin/busybox md5sum"
	shell("fill", "while /bin/busybox [ $(/bin/busybox stat -c %s /soft/all || echo 0) -lt 314572800 ]; do "+
		"/bin/busybox cat /bin/probe >> /soft/all; done")
	want, before := shell("before", end), ask(t, h, address)

	n.Godwit(t, "hibernate", vm)
	forget(t, n)
	n.Godwit(t, "wake", vm)
	awaitRestore(t, n, "RAM comes", func(s string) bool { return s == "" })
	if out := n.Godwit(t, "ps", "-o", "wide"); !strings.Contains(out, "lazy (auto: ") {
		t.Errorf("how it was restored: %s", out)
	}
	if got, now := shell("after", end), ask(t, h, address); got != want || now.Nonce != before.Nonce ||
		now.Counter <= before.Counter {
		t.Errorf("the VM is another one: %+v, was %+v; in its memory %s, was %s", now, before, got, want)
	}
	if second, _ := take(t, n, "hibernate", vm); second.Figures.Tracking != "uffd" {
		t.Errorf("tracked by %s", second.Figures.Tracking)
	}
}
