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
	beaconUDP = 9999
	// tick is how often the guest tells its counter.
	tick = 2 * time.Millisecond
	// ballast is random memory that the guest holds, in MiB.
	ballast = 64
)

// liveDemo is a run of RunLive.
type liveDemo struct {
	demo
	ports  *observer.Ports // 0: node a's, 1: node b's
	line   *observer.Line
	result LiveResult
}

// RunLive shows a VM that moves between two nodes while it runs. There is no registry:
// every byte goes from node to node. It answers and fails as Run does.
func RunLive(ctx context.Context, out io.Writer) (_ LiveResult, err error) {
	d := &liveDemo{demo: demo{out: out}}
	d.say("two nodes, each with containerd and godwitd, one wire, no registry")
	d.h, err = harness.Start(ctx, harness.Options{Nodes: 2, Godwitd: true, Images: true})
	if err != nil {
		return LiveResult{}, err
	}
	defer func() {
		if err != nil {
			d.h.Keep("demo-live")
			err = errors.Join(err, d.h.Logs())
		}
		err = errors.Join(err, d.h.Close())
	}()
	conn, err := d.h.ListenPacket(net.JoinHostPort(harness.Gateway, beaconPort))
	if err != nil {
		return d.result, err
	}
	defer conn.Close()
	d.watch = observer.Watch(conn)
	sniffers, err := d.h.SniffAll(beaconUDP)
	if err != nil {
		return d.result, err
	}
	defer harness.CloseAll(sniffers)
	d.ports = observer.Hear(sniffers...)
	if err := d.story(ctx); err != nil {
		return d.result, err
	}
	if wrong := append(d.result.Check(), d.failed...); len(wrong) > 0 {
		return d.result, fmt.Errorf("demo: %s", strings.Join(wrong, "; "))
	}
	return d.result, nil
}

func (d *liveDemo) story(ctx context.Context) error {
	a, b := d.h.Node(0), d.h.Node(1)
	emptyA, err := a.Inventory(ctx)
	if err != nil {
		return err
	}
	emptyB, err := b.Inventory(ctx)
	if err != nil {
		return err
	}
	before, address, err := d.boot(ctx, a, "-interval", tick.String(), "-fill", fmt.Sprint(ballast))
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, stepTimeout())
	defer cancel()
	d.say("wire: one TCP connection to the VM is opened, and asked all the time")
	if d.line, err = observer.Call(bounded, d.h.Dial, address, stepTimeout()); err != nil {
		return err
	}
	defer d.line.HangUp()
	if err := d.move(bounded, a, b); err != nil {
		return err
	}
	if err := d.compare(bounded, before, address); err != nil {
		return err
	}
	if err := d.empty(bounded, a, emptyA); err != nil {
		return err
	}
	d.say("node a: only the stopped container is left")
	if _, err := a.RunCtr(ctx, "container", "rm", vm); err != nil {
		return err
	}
	return d.remove(ctx, b, emptyB)
}

// move moves the VM, and looks at it from the wire.
func (d *liveDemo) move(ctx context.Context, a, b *harness.Node) error {
	size, resident, err := a.RAM()
	if err != nil {
		return fmt.Errorf("measure RAM: %w", err)
	}
	if err := known(ctx, a, b); err != nil {
		return err
	}
	sent, err := a.Sent(ctx)
	if err != nil {
		return err
	}
	d.ports.Forget()
	d.say("node a: godwit migrate %s --to b --mode live (%s resident)", vm, mib(&resident))
	begun := time.Now()
	out, err := a.RunGodwit(ctx, "-o", "json", "migrate", vm, "--to", b.Name, "--mode", "live")
	if err != nil {
		return err
	}
	total := ms(time.Since(begun))
	more, err := a.Sent(ctx)
	if err != nil {
		return err
	}
	moved := more - sent
	own, err := readMove(out)
	if err != nil {
		return err
	}
	r := &d.result
	r.RAMBytes, r.ResidentBytes, r.MovedBytes, r.TotalMS = &size, &resident, &moved, &total
	r.Mode, r.Passes = &own.Operation.Mode, &own.passes
	err = harness.Poll(ctx, stepTimeout(), func(context.Context) error {
		if !d.ports.Arrived(1) {
			return errors.New("the VM is not heard from node b")
		}
		return nil
	})
	if err != nil {
		return err
	}
	f := own.Figures
	d.say("node b: the VM runs after %.0f ms; %s went over the wire, in %d passes and a last one", total, mib(&moved),
		own.passes-1)
	d.say("        godwit says that it stood still for %.0f ms: copy %.0f, vote %.0f, commit %.0f, run %.0f", f.Downtime,
		f.Copy, f.Vote, f.Commit, f.Run)
	return observer.Pause(ctx, settle)
}

// compare says whether the VM on node b is the one that was on node a.
func (d *liveDemo) compare(ctx context.Context, before images.ProbeState, address string) error {
	said := d.line.HangUp()
	now, err := observer.Ask(ctx, d.h.Dial, address)
	if err != nil {
		return err
	}
	cross, err := d.ports.Cross(0, 1)
	if err != nil {
		return err
	}
	doubles, back := d.watch.Twice()
	same := now.Nonce == before.Nonce && now.PID == before.PID && now.StartTime == before.StartTime
	boot := now.BootID == before.BootID
	counter := cross.First.Counter > cross.Last.Counter && cross.First.Counter <= cross.Last.Counter+maxGap &&
		said.Counter > cross.First.Counter
	tcp := said.Err == nil && said.Asked > 0
	disk := now.FileOK && now.FileLines > before.FileLines
	still, twice := ms(cross.Gap), doubles+back+cross.Twice+cross.Late
	r := &d.result
	r.NonceSame, r.BootIDSame, r.CounterOK, r.TCPOK, r.DiskOK = &same, &boot, &counter, &tcp, &disk
	r.DowntimeMS, r.Duplicates = &still, &twice
	d.say("wire: last heard from node a at counter %d, first from node b at %d, %.1f ms later; %d heard twice",
		cross.Last.Counter, cross.First.Counter, still, twice)
	d.say("wire: the TCP connection answered %d times, the longest answer took %.0f ms; the disk has %d lines, had %d",
		said.Asked, ms(said.Longest), now.FileLines, before.FileLines)
	if said.Err != nil {
		d.fail("the TCP connection: %v", said.Err)
	}
	if !now.FileOK {
		d.fail("the file on the disk: %s", now.FileError)
	}
	return nil
}

// known waits until the controller knows both nodes.
func known(ctx context.Context, nodes ...*harness.Node) error {
	return harness.Poll(ctx, stepTimeout(), func(ctx context.Context) error {
		out, err := nodes[0].RunGodwit(ctx, "nodes")
		for _, n := range nodes {
			if err == nil && !strings.Contains(out, "\n"+n.Name+" ") {
				err = fmt.Errorf("the controller does not know node %s: %s", n.Name, out)
			}
		}
		return err
	})
}

// ownWord is what godwit says of a move.
type ownWord struct {
	Operation struct{ Mode, Phase string }
	Figures   struct {
		Downtime float64 `json:"downtimeMs"`
		Copy     float64 `json:"copyMs"`
		Vote     float64 `json:"voteMs"`
		Commit   float64 `json:"commitMs"`
		Run      float64 `json:"runMs"`
		Passes   []any
	}
	passes int
}

func readMove(text string) (w ownWord, err error) {
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		return w, fmt.Errorf("read what godwit migrate says: %w: %s", err, text)
	}
	if w.passes = len(w.Figures.Passes); w.Operation.Phase != "succeeded" {
		return w, fmt.Errorf("godwit migrate came back with %s", w.Operation.Phase)
	}
	return w, nil
}
