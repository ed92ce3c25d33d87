package soak

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// dayVerbs are drawn apart from the schedule, so that a seed draws the same steps as before there were any. They are of
// VMs that godwit run has made. Such a VM that begins anew has a new nonce, and the disk that it had.
func dayVerbs() []verb {
	return []verb{
		{"godwit run", 1, absent, (*act).runByGodwit},
		{"restart", 2, awake, (*act).restart},
		{"stop and start", 2, awake, (*act).stopAndStart},
	}
}

// beginsAnew are the verbs that have a VM begin anew.
var beginsAnew = []string{"restart", "stop and start"}

func (v verb) begins() bool { return slices.Contains(beginsAnew, v.name) }

// orderDay orders one of dayVerbs after each so many steps.
func (w *world) orderDay(ctx context.Context, named map[string]verb, step Step, day *Schedule) {
	each := cmp.Or(w.opts.DayEach, dayEach)
	if step.N%each != each/3 {
		return
	}
	more := day.verb()
	more.Sound = false
	if err := w.order(ctx, named[more.Name], more); err != nil {
		w.log("day %s: missed: %v", more, err)
	}
}

func (g *guest) stoppable() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made
}

// dayStream is what dayVerbs are drawn from, and dayEach how many steps lie between two.
const (
	dayStream = 3
	dayEach   = 5
)

// runByGodwit boots a VM, and waits until it is heard.
func (a *act) runByGodwit(ctx context.Context) error {
	return a.boot(ctx, func(ctx context.Context) error {
		a.g.set(func() { a.g.made = true })
		beacon := net.JoinHostPort(harness.Gateway, a.g.port)
		return a.godwit(ctx, a.to, "run", "-d", "--name", a.g.name, "--memory", memory, images.Probe, "-beacon",
			beacon, "-interval", interval)
	})
}

// boot has a VM made, and waits until it is heard.
func (a *act) boot(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	if err := a.separateAddresses(a.to); err != nil {
		return err
	}
	a.g.set(func() { a.g.tried = true })
	if err := run(ctx); err != nil {
		return err
	}
	return harness.Poll(ctx, bootBound, func(context.Context) error {
		a.g.known()
		if a.g.vm() == "" {
			return fmt.Errorf("VM %s is not heard", a.g.name)
		}
		return nil
	})
}

func (a *act) restart(ctx context.Context) error {
	return a.beginAnew(ctx, func(ctx context.Context) error {
		return a.godwit(ctx, a.owner, "restart", "--time", "1", a.g.name)
	})
}

func (a *act) stopAndStart(ctx context.Context) error {
	return a.beginAnew(ctx, func(ctx context.Context) error {
		if err := a.godwit(ctx, a.owner, "stop", "--time", "1", a.g.name); err != nil {
			return err
		}
		return a.godwit(ctx, a.owner, "start", a.g.name)
	})
}

// beginAnew gives the VM a file, has it begin anew, and wants the file to be there.
func (a *act) beginAnew(ctx context.Context, do func(context.Context) error) error {
	dir, err := os.MkdirTemp(a.Dir, "begin")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	content := []byte(a.id + "\n")
	if err := os.WriteFile(there, content, 0o644); err != nil {
		return err
	}
	if err := a.godwit(ctx, a.owner, "cp", there, a.g.name+":/begun"); err != nil {
		return err
	}
	if err := a.separateAddresses(a.owner); err != nil {
		return err
	}
	a.g.set(func() { a.g.begins++ })
	if err := do(ctx); err != nil {
		return err
	}
	if err := a.heardAnew(ctx); err != nil {
		return err
	}
	if err := a.godwit(ctx, a.owner, "cp", a.g.name+":/begun", back); err != nil {
		return err
	}
	got, err := os.ReadFile(back)
	if err == nil && !bytes.Equal(got, content) && a.g.excuses() == "" {
		a.violation("VM %s has begun anew without the disk that it had: its file has %q, want %q", a.g.name, got, content)
	}
	return err
}

// heardAnew waits for the new nonce of a VM that has begun anew.
func (a *act) heardAnew(ctx context.Context) error {
	return harness.Poll(ctx, bootBound, func(context.Context) error {
		if a.g.known(); a.g.vm() == a.begun {
			return fmt.Errorf("VM %s has begun anew, and is not heard", a.g.name)
		}
		return nil
	})
}

// beginning reports whether the VM was ordered to begin anew, and was not heard since.
func (g *guest) beginning() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begins > 0
}

// beginAgain starts a VM whose start a fault may have kept from its end. One that runs is refused.
func (w *world) beginAgain(ctx context.Context, g *guest, rec *nodev1.Record) {
	n := w.node(rec.GetOwner().GetNode())
	if rec.GetOwner().GetDigest() != "" || time.Since(g.last().at) < quiet {
		return
	}
	nodes := w.Nodes()
	if n != nil {
		nodes = []*harness.Node{n}
	}
	for _, n := range nodes {
		if err := w.separateAddresses(n); err != nil {
			w.log("  the judge starts VM %s with any address: %v", g.name, err) // else it would be called lost
		}
		_, err := n.RunGodwit(ctx, "start", g.name)
		w.log("  the judge starts VM %s on node %s: %v", g.name, n.Name, err)
		if err == nil {
			return
		}
	}
}
