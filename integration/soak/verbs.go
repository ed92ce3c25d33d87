package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// state that a verb wants its VM in, by the record.
type state string

const (
	absent state = "absent"
	awake  state = "awake"
	asleep state = "asleep"
	there  state = "there" // awake or asleep
	any_   state = ""      // no VM is needed
)

// verb is what a user may do.
type verb struct {
	name   string
	weight int
	wants  state
	do     func(*act, context.Context) error
}

func verbs() []verb {
	return []verb{
		{"run", 2, absent, (*act).run},
		{"hibernate", 4, awake, (*act).hibernate},
		{"wake", 4, asleep, (*act).wake},
		{"migrate live", 4, awake, (*act).live},
		{"migrate cold", 3, awake, (*act).cold},
		{"checkpoint", 3, awake, (*act).checkpoint},
		{"exec", 3, awake, (*act).exec},
		{"rename", 1, awake, (*act).rename},
		{"pin", 2, there, (*act).pin},
		{"cp", 2, awake, (*act).copy},
		{"kill", 1, awake, (*act).kill},
		{"rm", 1, there, (*act).rm},
		{"drain", 1, any_, (*act).drain},
	}
}

func verbNames() (names, drawn []string) {
	for _, v := range verbs() {
		names = append(names, v.name)
	}
	return names, drawnOf(verbs())
}

// act is one verb with whom it meets.
type act struct {
	*world
	g     *guest
	owner *harness.Node // nil: no node's
	to    *harness.Node // another one
	asked *harness.Node // whose daemon is asked where any may be
	id    string        // of the operation
	begun string        // the VM's nonce
	sound bool          // nothing is wrong while it is done
}

var errNobody = errors.New("there is nobody to meet")

// order begins a verb. It answers errNobody where no VM is as the verb wants it.
func (w *world) order(ctx context.Context, v verb, s Step) error {
	a := &act{world: w, id: fmt.Sprintf("soak-%d", w.orders.Add(1)), sound: s.Sound}
	a.asked, _ = at(w.Nodes(), s.Other)
	if v.wants == any_ {
		a.to, _ = at(w.Nodes(), s.Node)
	} else {
		all, err := w.look(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", errNobody, err)
		}
		fit := slices.DeleteFunc(slices.Clone(w.guests), func(g *guest) bool {
			return !fits(v.wants, g, all[g.name], w.old.Load()) || v.begins() && !g.stoppable() ||
				v.ofPod() != (g.pod != nil)
		})
		g, ok := at(fit, s.VM)
		if !ok || !g.claim() {
			return errNobody
		}
		a.g, a.owner, a.begun = g, w.node(all[g.name].GetOwner().GetNode()), g.vm()
		others := slices.DeleteFunc(slices.Clone(w.Nodes()), func(n *harness.Node) bool { return n == a.owner })
		a.to, _ = at(others, s.Node)
	}
	w.excuseOld(a.g)
	w.log("%s: %s", s, a)
	w.steps.add(fmt.Sprintf("%s: %s", s, a))
	w.result.change(func() { w.result.Operations++; w.result.Verbs[v.name]++ })
	w.calls.Go(func() { a.play(ctx, v) })
	return nil
}

func (a *act) String() string {
	text := a.id
	if a.g != nil {
		text += " of " + a.g.name
	}
	if a.owner != nil {
		text += " on " + a.owner.Name
	}
	return text + ", node " + a.to.Name
}

// fits reports whether a verb may meet a guest. What is excused because the store will be put back is
// as its record says until that has happened: old says that it has not.
func fits(want state, g *guest, rec *nodev1.Record, old bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy {
		return false
	}
	excused := g.excused != "" && (g.excused != putBack || !old)
	is := absent
	switch {
	case g.nonce == "" || excused:
	case rec.GetOwner().GetNode() != "":
		is = awake
	case rec.GetOwner().GetDigest() != "":
		is = asleep
	default:
		return false // the judge looks into that
	}
	if is == absent && excused {
		return false
	}
	return is == want || want == there && is != absent
}

func (a *act) play(ctx context.Context, v verb) {
	begun := time.Now()
	do := v.do
	if a.sound {
		do = func(a *act, ctx context.Context) error { return a.retryUnavailable(ctx, v.do) }
	}
	err := do(a, ctx)
	if a.g != nil {
		a.g.set(func() {
			a.g.busy = false
			if err == nil && slices.Contains([]string{"run", "wake", "migrate live", "migrate cold", "pod run",
				"pod wake", "pod wake, containerd killed", "pod move", "pod move, container ends"}, v.name) {
				a.g.adopted = "" // a shim that containerd has started has it
			}
		})
	}
	took := time.Since(begun).Seconds()
	if err == nil {
		a.log("  %s %s: done after %.1f s", v.name, a, took)
		a.result.change(func() { a.result.Succeeded[v.name]++ })
		return
	}
	a.log("  %s %s: failed after %.1f s: %v", v.name, a, took, err)
	a.result.change(func() { a.result.Failed++ })
	if wrong := a.faultOf(err); wrong != "" {
		a.violation("%s ends with %s: %v", v.name, wrong, err)
	}
}

func (a *act) godwit(ctx context.Context, n *harness.Node, args ...string) error {
	_, err := n.RunGodwit(ctx, args...)
	return err
}

func (a *act) hibernate(ctx context.Context) error {
	return a.godwit(ctx, a.owner, "hibernate", "--end-execs", "--operation", a.id, a.g.name)
}

func (a *act) wake(ctx context.Context) error {
	return a.godwit(ctx, a.to, "wake", "--on", a.to.Name, "--operation", a.id, a.g.name)
}

func (a *act) checkpoint(ctx context.Context) error {
	return a.godwit(ctx, a.owner, "checkpoint", "--operation", a.id, a.g.name)
}

func (a *act) cold(ctx context.Context) error { return a.migrate(ctx, "cold") }

func (a *act) migrate(ctx context.Context, mode string) error {
	return a.godwit(ctx, a.asked, "migrate", a.g.name, "--to", a.to.Name, "--mode", mode, "--end-execs",
		"--operation", a.id)
}

// live moves the VM while a connection to it is open, which has to go on.
func (a *act) live(ctx context.Context) error {
	drains := a.drains.Load()
	dial, cancel := context.WithTimeout(ctx, askBound)
	line, err := observer.CallEvery(dial, a.Dial, a.g.last().from, answerBound, time.Second)
	cancel()
	if err != nil {
		a.log("  %s: no connection: %v", a, err)
		return a.migrate(ctx, "live")
	}
	err = a.migrate(ctx, "live")
	_ = observer.Pause(ctx, 2*time.Second)
	said := line.HangUp()
	if said.Err != nil && ctx.Err() == nil && a.g.excuses() == "" && a.draining.Load() == 0 && a.drains.Load() == drains {
		a.violation("VM %s: its connection has not outlived the move %s, which ended with %v: %v, after %d answers", a.g.name,
			a.id, err, said.Err, said.Asked)
	}
	if said.Err == nil && err == nil {
		a.result.change(func() { a.result.Lines++ })
	}
	return err
}

// exec reads the first line of the guest's file in a process of its own.
func (a *act) exec(ctx context.Context) error {
	out, err := a.owner.RunCtr(ctx, "task", "exec", "--exec-id", a.id, a.g.name, "/bin/head", "-n", "1", "/data/journal")
	if err == nil && out != "" && a.g.excuses() == "" && a.g.vm() == a.begun && !a.g.stamped(out) {
		a.violation("VM %s has another's file: %q", a.g.name, out)
	}
	return err
}

func (a *act) kill(ctx context.Context) error {
	a.g.excuse("task kill")
	_, err := a.owner.RunCtr(ctx, "task", "kill", "--signal", "SIGKILL", a.g.name)
	return err
}

func (a *act) rm(ctx context.Context) error {
	a.g.excuse("rm")
	return a.remove(ctx, a.g)
}

// run boots a VM, and waits until it is heard.
func (a *act) run(ctx context.Context) error {
	return a.boot(ctx, func(ctx context.Context) error {
		a.g.set(func() { a.g.fresh = true })
		beacon := net.JoinHostPort(harness.Gateway, a.g.port)
		_, err := a.to.RunCtr(ctx, "run", "-d", "--cni", "--annotation", "godwit.dev/memory="+memory, "--runtime",
			runtimeName, images.Probe, a.g.name, "/bin/probe", "-beacon", beacon, "-interval", interval)
		return err
	})
}

// drain moves all VMs away from a node, and lets them come again.
func (a *act) drain(ctx context.Context) error {
	a.drains.Add(1)
	a.draining.Add(1)
	defer a.draining.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	follow, over := context.WithCancel(ctx)
	var followed sync.WaitGroup
	followed.Go(func() { a.followPods(follow) })
	err := a.godwit(ctx, a.asked, "drain", a.to.Name)
	over()
	followed.Wait()
	if ctx.Err() != nil { // who wakes VMs there keeps it from an end
		err = ctx.Err()
	}
	return errors.Join(err, a.godwit(ctx, a.asked, "uncordon", a.to.Name))
}

// removeRecord removes the record of a VM that no node has any more. Where a store that was put back knows another VM
// of that name, the nodes are asked once more, as the record says.
func (w *world) removeRecord(ctx context.Context, args ...string) error {
	_, err := w.Node(0).RunGodwit(ctx, args...)
	switch {
	case exitCode(err) == absentCode:
		return nil
	case err != nil && strings.Contains(err.Error(), "order godwit controller restore once more"):
		_, rerr := w.Node(0).RunGodwit(ctx, "controller", "restore")
		return errors.Join(err, rerr)
	}
	return err
}

// remove ends a VM as a user of containerd does, on all nodes, and its record.
func (w *world) remove(ctx context.Context, g *guest) error {
	if g.pod != nil {
		return w.removePod(ctx, g)
	}
	fresh := false
	g.set(func() { fresh = g.fresh })
	for _, n := range w.Nodes() {
		for _, args := range [][]string{{"task", "rm", "--force", g.name}, {"container", "rm", g.name}} {
			if _, err := n.RunCtr(ctx, args...); err != nil && !strings.Contains(err.Error(), "not found") {
				return err
			}
		}
		if fresh {
			if err := giveBack(n, g.name); err != nil {
				return err
			}
		}
	}
	err := w.removeRecord(ctx, "rm", "--force", g.name)
	if err == nil {
		g.retire()
	}
	return err
}
