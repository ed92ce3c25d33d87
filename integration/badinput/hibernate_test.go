//go:build integration

package badinput

import (
	"bufio"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// A hibernate that cannot be done leaves the VM running, nothing open in its record and
// no snapshot in the registry.
func TestHibernateRefused(t *testing.T) {
	s := newSite(t, 1)
	n := s.Node(0)
	n.CheckClean(t)
	g := s.run(t, n, "refused")
	for _, c := range []struct {
		name string
		test func(*testing.T, *guest, *harness.Node)
	}{
		{"paused", paused}, {"exec runs", busy}, {"two at once", both}, {"registry down", down},
		{"registry refuses", refuses},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.test(t, g, n) }) {
			g.runsOn(t, n) // else what follows would fail for this reason alone
		}
	}
	g.remove(t, n)
	godwitFails(t, n, "hibernate", g.id).want(t, "NotFound", `no VM "refused" in namespace default`)
}

// paused: the user stopped the VM, and must say that it may go on.
func paused(t *testing.T, g *guest, n *harness.Node) {
	n.Ctr(t, "task", "pause", g.id)
	godwitFails(t, n, "hibernate", g.id).want(t, "FailedPrecondition", "refused", "paused", "ctr task resume")
	n.Ctr(t, "task", "resume", g.id)
	g.runsOn(t, n)
}

// busy: an exec is in the way by its name, and is ended only by order.
func busy(t *testing.T, g *guest, n *harness.Node) {
	work := n.Command(t.Context(), "ctr", n.CtrArgs("task", "exec", "--exec-id", "busy", g.id, "sh", "-c",
		"echo up; exec sleep 1000")...)
	out, err := work.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Enter(work.Start); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("exec says %q, %v", line, err)
	}
	godwitFails(t, n, "hibernate", g.id).want(t, "FailedPrecondition", "refused", "exec busy", "--end-execs")
	g.runsOn(t, n)
	g.hibernate(t, n, "--end-execs")
	var exit *exec.ExitError
	if err := work.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 137 {
		t.Errorf("the exec ended with %v, want exit code 137", err)
	}
	g.wake(t, n)
}

// both: the second of two names the first, which is not disturbed. So does every other
// call that would change a VM on its way.
func both(t *testing.T, g *guest, n *harness.Node) {
	begun, open := g.Door.Hold(pack) // what is asked before the pause is let through
	defer open()
	first := make(chan error, 1)
	go func() {
		_, err := n.RunGodwit(t.Context(), "hibernate", "--operation", "first", g.id)
		first <- err
	}()
	select {
	case <-begun:
	case err := <-first:
		t.Fatalf("hibernate ended without a push: %v", err)
	}
	godwitFails(t, n, "hibernate", "--operation", "second", g.id).want(t, "FailedPrecondition", "refused",
		"is busy", "Node a puts it to sleep")
	ctrFails(t, n, "task", "exec", "--exec-id", "late", g.id, "true").want(t, "FailedPrecondition", "operation first",
		"refused")
	ctrFails(t, n, "task", "pause", g.id).want(t, "FailedPrecondition", "operation first", "refused")
	ctrFails(t, n, "task", "kill", "--signal", "SIGKILL", g.id).want(t, "FailedPrecondition", "operation first", "refused")
	godwitFails(t, n, "rm", "--force", g.id).want(t, "FailedPrecondition", "refused is busy", "Node a puts it to sleep")
	open()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	g.sleeps(t)
	g.wake(t, n)
}

// down: no program answers at the registry's address.
func down(t *testing.T, g *guest, n *harness.Node) {
	had := g.snapshots(t)
	if err := g.Unplug(); err != nil {
		t.Fatal(err)
	}
	godwitFails(t, n, "hibernate", g.id).want(t, "Unavailable", "refused", harness.RegistryHost, "connection refused")
	if err := g.Plug(); err != nil {
		t.Fatal(err)
	}
	g.runsOn(t, n)
	g.hasNoMore(t, had)
}

// refuses: the registry answers, but takes nothing, or not all of it.
func refuses(t *testing.T, g *guest, n *harness.Node) {
	manifest := func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
	}
	anything := func(*http.Request) bool { return true }
	for _, c := range []struct {
		name  string
		hits  func(*http.Request) bool
		fault harness.Fault
		class string
		words []string
	}{
		{"401 on all", anything, harness.Fault{Status: 401}, "Unauthenticated", []string{"401", harness.RegistryHost}},
		{"403 on an upload", upload, harness.Fault{Status: 403}, "PermissionDenied", []string{"403", harness.Repository}},
		{"404 on an upload", upload, harness.Fault{Status: 404}, "FailedPrecondition", []string{"404", harness.Repository}},
		{"500 on an upload", upload, harness.Fault{Status: 500}, "Unavailable", []string{"500", harness.Repository}},
		{"413 on an upload", upload, harness.Fault{Status: 413}, "ResourceExhausted", []string{"413", harness.Repository}},
		{"507 on an upload", upload, harness.Fault{Status: 507}, "ResourceExhausted", []string{"507", harness.Repository}},
		{"cut in a pack", pack, harness.Fault{Cut: bite}, "Unavailable", []string{harness.Repository}},
		{"507 on the manifest", manifest, harness.Fault{Status: 507}, "ResourceExhausted", []string{"507", "manifest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			had := g.snapshots(t)
			g.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
				if c.hits(r) {
					return c.fault
				}
				return harness.Fault{}
			})
			got := godwitFails(t, n, "hibernate", g.id)
			g.Door.SetFault(nil)
			got.want(t, c.class, append(c.words, "refused")...)
			g.runsOn(t, n)
			g.hasNoMore(t, had)
		})
	}
	t.Run("cut once", func(t *testing.T) {
		var cut atomic.Bool
		g.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
			if pack(r) && cut.CompareAndSwap(false, true) {
				return harness.Fault{Cut: bite}
			}
			return harness.Fault{}
		})
		defer g.Door.SetFault(nil)
		g.hibernate(t, n)
		if !cut.Load() {
			t.Error("nothing was cut")
		}
		g.wake(t, n)
	})
}

func upload(r *http.Request) bool {
	return (r.Method == http.MethodPost || r.Method == http.MethodPut) && strings.Contains(r.URL.Path, "/blobs/uploads/")
}

// bite is where a body is cut; a blob that is larger is cut in the middle.
const bite = 16 << 10

func pack(r *http.Request) bool { return upload(r) && r.ContentLength > 2*bite }

// snapshots are the manifests that the registry holds of the VM.
func (g *guest) snapshots(t *testing.T) []string {
	t.Helper()
	v, ok := look(t, g.Node(0), g.id)
	if !ok {
		t.Fatalf("no VM %s", g.id)
	}
	all, err := g.Manifests(harness.Repository + "/" + v.UID)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (g *guest) hasNoMore(t *testing.T, had []string) {
	t.Helper()
	if now := g.snapshots(t); strings.Join(now, " ") != strings.Join(had, " ") {
		t.Errorf("the registry holds %v, before it held %v", now, had)
	}
}
