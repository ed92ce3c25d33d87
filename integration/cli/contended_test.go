//go:build integration

package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/client"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// TestContendedName: of two that make a VM of one name at once exactly one wins. The other one is told what is wrong
// and what to do, and leaves nothing. A registry that stops in the middle of an image ends a pull in the same way.
func TestContendedName(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP})
	d := &day{t, h.Node(0), h}
	t.Run("made at once", func(t *testing.T) { (&day{t, d.n, h}).madeAtOnce() })
	t.Run("run at once", func(t *testing.T) { (&day{t, d.n, h}).runAtOnce() })
	t.Run("registry stalls", func(t *testing.T) { (&day{t, d.n, h}).registryStalls() })
	d.empty()
}

// two calls f twice at once.
func two(f func() error) (errs [2]error) {
	var begin, ended sync.WaitGroup
	begin.Add(1)
	for i := range errs {
		ended.Go(func() { begin.Wait(); errs[i] = f() })
	}
	begin.Done()
	ended.Wait()
	return errs
}

// loser wants that exactly one has failed, and answers its error.
func (d *day) loser(errs [2]error) error {
	d.Helper()
	if (errs[0] == nil) == (errs[1] == nil) {
		d.Fatalf("not exactly one has won: %v; %v", errs[0], errs[1])
	}
	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

// active are the snapshots of containers.
func (d *day) active() (n int) {
	d.Helper()
	for line := range strings.Lines(d.n.Ctr(d, "snapshots", "ls")) {
		if strings.Contains(line, "Active") {
			n++
		}
	}
	return n
}

func (d *day) madeAtOnce() {
	const rounds = 20
	for round := range rounds {
		name := fmt.Sprintf("made-%d", round)
		err := d.loser(two(func() error {
			c := client.New(client.WithConfig(d.n.Config))
			defer c.Close()
			_, err := c.Create(d.Context(), client.VMOptions{Image: images.Busybox, Name: name, Network: "none"})
			return err
		}))
		if _, told := errors.AsType[*client.Problem](err); !told || !errdefs.IsAlreadyExists(err) ||
			!strings.Contains(err.Error(), "The name "+name+" is taken.") || !strings.Contains(err.Error(), "To remove it: ") {
			d.Errorf("round %d: %v", round, err)
		}
		if n := d.active(); n != 1 {
			d.Errorf("round %d: %d snapshots of containers", round, n)
		}
		d.says("removed", "rm", "-f", name)
	}
	d.empty()
}

func (d *day) runAtOnce() {
	err := d.loser(two(func() error {
		_, err := d.n.RunGodwit(d.Context(), "run", "-d", "--name", "twin", images.Busybox, "sleep", "1000")
		return err
	}))
	run, ok := errors.AsType[*harness.RunError](err)
	if !ok || run.Code() != 125 || !strings.Contains(run.Stderr, "The name twin is taken.") {
		d.Errorf("the second one: %v", err)
	}
	d.says("root", "exec", "twin", "id")
	if vmms, err := d.n.VMMs(); err != nil || len(vmms) != 1 || d.active() != 1 {
		d.Errorf("VMMs %v, %v; %d snapshots", vmms, err, d.active())
	}
	d.says("removed", "rm", "-f", "twin")
	d.empty()
}

// registryStalls: a registry that sends the first bytes of a layer and no more ends a pull, and Ctrl-C does at once.
func (d *day) registryStalls() {
	image := harness.Repository + "/stalls:1"
	d.n.Ctr(d, "images", "tag", images.Busybox, image)
	d.n.Ctr(d, "images", "push", "--plain-http", image)
	d.n.Ctr(d, append([]string{"images", "rm", "--sync"}, strings.Fields(d.n.Ctr(d, "images", "ls", "-q"))...)...)
	const sent = 10_000
	reached := make(chan struct{}, 1)
	stall := func() {
		d.h.Door.SetFault(func(_ int, r *http.Request) harness.Fault {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
				return harness.Fault{}
			}
			select {
			case reached <- struct{}{}:
			default:
			}
			return harness.Fault{Stall: sent}
		})
	}
	stall()
	defer d.h.Door.SetFault(nil)
	d.interrupt(func() bool { <-reached; return true }, 130, "pull", "--insecure-registry", image)
	d.empty()
	d.fails(125, "bytes, and has sent nothing for 1m0s. To go on, see whether it works, and pull again.", "run",
		"--insecure-registry", "-d", "--name", "stalls", image)
	d.empty()
	d.h.Door.SetFault(nil)
	d.says("stalls", "pull", "--insecure-registry", image)
}
