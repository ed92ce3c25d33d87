// Package demo shows godwit's main job on two nodes of one host: a VM started with ctr
// sleeps in a registry, wakes on the other node, and goes back. What it says comes from
// the guest and the wire, never from godwit.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	vm          = "web"
	runtimeName = "io.containerd.godwit.v1"
	beaconPort  = "9999"
	// quiet is how long a VM that sleeps must not be heard.
	quiet = time.Second
	// settle is how long the guest runs before it is put to sleep.
	settle = 2 * time.Second
)

// stepTimeout bounds a boot or a wake on a machine without KVM.
func stepTimeout() time.Duration { return harness.Slow(2 * time.Minute) }

// demo is one run.
type demo struct {
	h      *harness.Harness
	out    io.Writer
	watch  *observer.Watcher
	result Result
	failed []string // checks in addition to the figures
}

// debianRegistry comes built: to build one takes as long as all of godwit.
const debianRegistry = "docker-registry"

// Run shows everything and answers what was measured. The error names every check that failed,
// or the step that could not be done; nothing is left over either way.
func Run(ctx context.Context, out io.Writer) (_ Result, err error) {
	d := &demo{out: out}
	d.say("two nodes, each with containerd and godwitd, one wire, one OCI registry")
	d.h, err = harness.Start(ctx, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Server: debianRegistry,
		Godwitd: true, Images: true})
	if err != nil {
		return Result{}, err
	}
	defer func() {
		if err != nil {
			d.h.Keep("demo")
			err = errors.Join(err, d.h.Logs())
		}
		err = errors.Join(err, d.h.Close())
	}()
	conn, err := d.h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		return Result{}, err
	}
	defer conn.Close()
	d.watch = observer.Watch(conn)
	if err := d.mainJob(ctx); err != nil {
		return d.result, err
	}
	if wrong := append(d.result.Check(), d.failed...); len(wrong) > 0 {
		return d.result, fmt.Errorf("demo: %s", strings.Join(wrong, "; "))
	}
	return d.result, nil
}

// mainJob is the story: run on a, sleep, wake on b, sleep, wake on a, remove.
func (d *demo) mainJob(ctx context.Context) error {
	a, b := d.h.Node(0), d.h.Node(1)
	emptyA, err := a.Inventory(ctx)
	if err != nil {
		return err
	}
	emptyB, err := b.Inventory(ctx)
	if err != nil {
		return err
	}
	before, address, err := d.boot(ctx, a)
	if err != nil {
		return err
	}
	if err := d.sleep(ctx, a, emptyA, first); err != nil {
		return err
	}
	if err := d.wake(ctx, b, address, before, first); err != nil {
		return err
	}
	if err := d.sleep(ctx, b, emptyB, second); err != nil {
		return err
	}
	if err := d.wake(ctx, a, address, before, second); err != nil {
		return err
	}
	if doubles, back := d.watch.Twice(); doubles+back > 0 {
		d.fail("the VM was seen twice: %d beacons doubled, %d out of order", doubles, back)
	}
	return d.remove(ctx, a, emptyA)
}

// round tells the two trips apart; the figures are those of the first.
type round int

const (
	first round = iota
	second
)

// boot starts the VM, with more flags for the probe, and answers what it tells, and its
// address.
func (d *demo) boot(ctx context.Context, n *harness.Node, flags ...string) (images.ProbeState, string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	d.say("node %s: ctr run --cni --runtime %s (a nonce and a counter in memory, a growing file)", n.Name, runtimeName)
	d.watch.Mark("boot")
	beacon := net.JoinHostPort(harness.Gateway, beaconPort)
	args := append([]string{"run", "-d", "--cni", "--runtime", runtimeName, images.Probe, vm, "/bin/probe", "-beacon",
		beacon}, flags...)
	if _, err := n.RunCtr(ctx, args...); err != nil {
		return images.ProbeState{}, "", err
	}
	sign, err := d.watch.After(ctx, "boot")
	if err != nil {
		return images.ProbeState{}, "", err
	}
	state, err := observer.Ask(ctx, d.h.Dial, sign.From)
	if err != nil {
		return images.ProbeState{}, "", err
	}
	if state.Nonce != sign.Nonce {
		d.fail("the guest's answer and its beacons differ in the nonce")
	}
	vmm, err := n.VMM(ctx)
	if err != nil {
		return images.ProbeState{}, "", err
	}
	d.result.VMM = &vmm
	d.say("node %s: the VM runs at %s (%s), nonce %s.., pid %d", n.Name, sign.From, vmm, state.Nonce[:8], state.PID)
	return state, sign.From, observer.Pause(ctx, settle)
}

// sleep hibernates the VM and checks that the node holds nothing of it.
func (d *demo) sleep(ctx context.Context, n *harness.Node, empty harness.Inventory, r round) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	size, resident, err := n.RAM()
	if err != nil {
		return fmt.Errorf("measure RAM: %w", err)
	}
	d.h.Door.Take()
	d.say("node %s: godwit hibernate %s", n.Name, vm)
	out, err := n.RunGodwit(ctx, "hibernate", "-o", "json", vm)
	if err != nil {
		return err
	}
	if r == second && strings.Contains(*d.result.VMM, "QEMU") { // another maps RAM as it loads its state
		if err := d.looked(out, resident); err != nil {
			return err
		}
	}
	push, ok := harness.SumPush(d.h.Door.Take())
	if !ok {
		return errors.New("hibernate came back without a manifest in the registry")
	}
	last := d.watch.Latest()
	if err := observer.Pause(ctx, quiet); err != nil {
		return err
	}
	if again := d.watch.Latest(); again.Counter != last.Counter {
		d.fail("the VM was heard while it slept")
	}
	if err := d.empty(ctx, n, empty); err != nil {
		return err
	}
	pushed := uint64(push.Bytes)
	if r == second {
		d.result.SecondPushedBytes = &pushed
		d.say("node %s: asleep again; pushed %s, the first time %s", n.Name, mib(&pushed), mib(d.result.PushedBytes))
		return nil
	}
	paused, durable := ms(push.LastBlob.Sub(last.At)), ms(push.Manifest.Sub(push.LastBlob))
	d.result.RAMBytes, d.result.ResidentBytes, d.result.PushedBytes = &size, &resident, &pushed
	d.result.CounterBefore, d.result.PauseMS, d.result.DurableMS = &last.Counter, &paused, &durable
	d.say("node %s: asleep at counter %d; pushed %s of %s resident; only the stopped container is left on node %s",
		n.Name, last.Counter, mib(&pushed), mib(&resident), n.Name)
	return nil
}

// looked wants a VM that woke to be tracked from its first instruction on, where the node tracks.
func (d *demo) looked(out string, resident uint64) error {
	var own struct {
		Figures struct {
			Tracking string
			Passes   []struct {
				Looked uint64 `json:"lookedBytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil {
		return fmt.Errorf("hibernate %s: %w", vm, err)
	}
	f := own.Figures
	if f.Tracking == "uffd" && len(f.Passes) > 0 && f.Passes[0].Looked > resident/2 {
		d.fail("the hibernate after a wake has looked at %d bytes of %d resident", f.Passes[0].Looked, resident)
	}
	d.say("tracked by %s, passes %+v", f.Tracking, f.Passes)
	return nil
}

// wake wakes the VM on a node and compares it with what it was.
func (d *demo) wake(ctx context.Context, n *harness.Node, address string, before images.ProbeState, r round) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	asleep := d.watch.Latest()
	mark := "wake on " + n.Name
	d.say("node %s: godwit wake --on %s %s", n.Name, n.Name, vm)
	d.watch.Mark(mark)
	start := time.Now()
	answer := make(chan answered, 1)
	go func() { s, err := observer.Ask(ctx, d.h.Dial, address); answer <- answered{s, err, time.Now()} }()
	if _, err := n.RunGodwit(ctx, "wake", "--on", n.Name, vm); err != nil {
		return err
	}
	sign, err := d.watch.After(ctx, mark)
	if err != nil {
		return err
	}
	got := <-answer
	if got.err != nil {
		return got.err
	}
	after := got.state
	sameProcess := after.Nonce == before.Nonce && after.PID == before.PID && after.StartTime == before.StartTime &&
		sign.Nonce == before.Nonce
	sameBoot := after.BootID == before.BootID
	whole := after.FileOK && after.FileLines >= before.FileLines
	if sign.Counter <= asleep.Counter || sign.Counter > asleep.Counter+maxGap {
		d.fail("on node %s the counter went from %d to %d", n.Name, asleep.Counter, sign.Counter)
	}
	d.say("node %s: awake at counter %d, at the same address, after %.0f ms", n.Name, sign.Counter, ms(sign.At.Sub(start)))
	if r == second {
		if !sameProcess || !sameBoot || !whole {
			d.fail("back on node %s: same process %t, same boot %t, file whole %t (%s)", n.Name, sameProcess, sameBoot, whole,
				after.FileError)
		}
		return nil
	}
	answers, woke, told := true, ms(sign.At.Sub(start)), ms(got.at.Sub(start))
	d.result.NonceSame, d.result.BootIDSame, d.result.FileOK, d.result.Answers = &sameProcess, &sameBoot, &whole, &answers
	d.result.CounterAfter, d.result.WakeMS, d.result.FirstAnswerMS = &sign.Counter, &woke, &told
	return observer.Pause(ctx, settle)
}

type answered struct {
	state images.ProbeState
	err   error
	at    time.Time
}

// remove ends the VM as a user of containerd does, and its record.
func (d *demo) remove(ctx context.Context, n *harness.Node, empty harness.Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	d.say("node %s: ctr task rm --force, ctr container rm, godwit rm", n.Name)
	for _, args := range [][]string{{"task", "rm", "--force", vm}, {"container", "rm", vm}} {
		if _, err := n.RunCtr(ctx, args...); err != nil {
			return err
		}
	}
	if _, err := n.RunGodwit(ctx, "rm", vm); err != nil {
		return err
	}
	if err := n.Clean(ctx, empty); err != nil {
		d.fail("after the end: %v", err)
	}
	return nil
}

// empty checks that a node holds nothing of the VM but the stopped container object.
func (d *demo) empty(ctx context.Context, n *harness.Node, empty harness.Inventory) error {
	if err := n.Clean(ctx, empty); err != nil {
		d.fail("while the VM sleeps: %v", err)
	}
	containers, err := n.RunCtr(ctx, "containers", "ls", "-q")
	if err != nil {
		return err
	}
	if strings.TrimSpace(containers) != vm {
		d.fail("node %s has the containers %q, want %q", n.Name, containers, vm)
	}
	tasks, err := n.RunCtr(ctx, "tasks", "ls")
	if err != nil {
		return err
	}
	if strings.Contains(tasks, "RUNNING") || strings.Contains(tasks, "PAUSED") {
		d.fail("node %s has a task while the VM sleeps: %s", n.Name, tasks)
	}
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "demo: "+format+"\n", args...) }

func (d *demo) fail(format string, args ...any) {
	d.failed = append(d.failed, fmt.Sprintf(format, args...))
	d.say("CHECK FAILED: "+format, args...)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
