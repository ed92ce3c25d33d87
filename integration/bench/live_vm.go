package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

const (
	dirtyRate       = 200 // MiB a second
	contentResident = 1300
)

// probeFlags are those of the guest in a move, the same for godwit and its rivals.
func probeFlags(s shape, more ...string) []string {
	return append([]string{
		"-beacon", net.JoinHostPort(harness.Gateway, fmt.Sprint(livePort)), "-interval", liveTick.String(), "-lean",
		"-fill", fmt.Sprint(noise), "-soft", fmt.Sprint(max(0, s.resident-s.idle-noise)),
	}, more...)
}

// moveWord is what godwit says of a move, or of several.
type moveWord struct {
	Operation struct{ ID, Phase, Mode string }
	Figures   struct {
		Downtime float64 `json:"downtimeMs"`
		Copy     float64 `json:"copyMs"`
		Vote     float64 `json:"voteMs"`
		Commit   float64 `json:"commitMs"`
		Run      float64 `json:"runMs"`
		Stop     float64 `json:"stopMs"`
		Save     float64 `json:"saveMs"`
		Tracking string
		Passes   []struct {
			Looked uint64 `json:"lookedBytes"`
			Sent   uint64 `json:"sentBytes"`
			Left   uint64 `json:"leftBytes"`
			MS     float64
		}
	}
	Transfer struct{ Pass int }
	Moves    []moveWord
	Nodes    []struct{ Name string }
}

// moves runs a verb of the CLI that answers in JSON.
func (b *liveBench) moves(ctx context.Context, args ...string) (w moveWord, err error) {
	out, err := b.node.RunGodwit(ctx, append([]string{"-o", "json"}, args...)...)
	if err != nil {
		return w, err
	}
	if err := json.Unmarshal([]byte(out), &w); err != nil {
		return w, fmt.Errorf("read what godwit %v says: %w: %s", args, err, out)
	}
	return w, nil
}

// boot starts the guest on node a, with a way of tracking, and waits until it ticks.
func (b *liveBench) boot(ctx context.Context, s shape, way string, flags ...string) error {
	dir := filepath.Join(b.h.Dir, "way-"+way)
	data, err := os.ReadFile(b.node.Config)
	if err == nil {
		err = dropIn(dir, liveConfig()+"[worker]\ntracking = '"+way+"'\n")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.toml"), data, 0o600)
	}
	if err != nil {
		return err
	}
	b.ports.Forget()
	args := []string{"run", "-d", "--cni", "--runtime", runtimeName, "--runtime-config-path",
		filepath.Join(dir, "config.toml"),
		"--annotation", fmt.Sprintf("godwit.dev/memory=%dMiB", s.ram), images.Probe, liveVM, "/bin/probe"}
	if _, err := b.node.RunCtr(ctx, append(args, probeFlags(s, flags...)...)...); err != nil {
		return err
	}
	if err := b.arrived(ctx, 0); err != nil {
		return err
	}
	return observer.Pause(ctx, settle)
}

// arrived waits until the guest ticks at a node, and goes on to for a moment.
func (b *liveBench) arrived(ctx context.Context, place int) error {
	for !b.ports.Arrived(place) {
		if err := observer.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the guest does not tick at node %d: %w", place, err)
		}
	}
	return observer.Pause(ctx, 100*time.Millisecond)
}

// liveMove moves the guest to node b and answers what godwit and the wire say.
func (b *liveBench) liveMove(ctx context.Context) (w moveWord, c observer.Crossing, err error) {
	b.ports.Forget()
	if w, err = b.moves(ctx, "migrate", liveVM, "--to", b.there.Name, "--mode", "live"); err != nil {
		return w, c, err
	}
	if err := b.arrived(ctx, 1); err != nil {
		return w, c, err
	}
	if c, err = b.ports.Cross(0, 1); err == nil && c.Twice+c.Late > 0 {
		err = fmt.Errorf("the guest was seen twice: %+v", c)
	}
	f := w.Figures
	b.say("  live: gap %.1f ms, %d ticks lost; stop to cont %.1f: copy %.1f (stop %.1f, save %.1f), vote %.1f, commit "+
		"%.1f, run %.1f; %s",
		ms(c.Gap), c.Lost, f.Downtime, f.Copy, f.Stop, f.Save, f.Vote, f.Commit, f.Run, f.Tracking)
	for _, p := range f.Passes {
		b.say("    pass: %d pages looked at, %d sent, %d left, %.1f ms", p.Looked>>12, p.Sent>>12, p.Left>>12, p.MS)
	}
	return w, c, err
}

// end removes the VM from both nodes.
func (b *liveBench) end(ctx context.Context) error {
	for _, n := range b.h.Nodes() { // wherever it is
		_, _ = n.RunCtr(ctx, "task", "rm", "--force", liveVM)
		_, _ = n.RunCtr(ctx, "container", "rm", liveVM)
	}
	_, err := b.node.RunGodwit(ctx, "rm", "--force", liveVM)
	return err
}

// gap times a live move by the guest's ticks.
func (b *liveBench) gap(ctx context.Context, s shape) error {
	if err := b.boot(ctx, s, "auto"); err != nil {
		return err
	}
	_, resident, err := b.node.RAM()
	if err != nil {
		return err
	}
	w, c, err := b.liveMove(ctx)
	if err != nil {
		return err
	}
	b.note("gap_ms_"+s.name, ms(c.Gap))
	b.note("resident_"+s.name, float64(resident)/mib)
	b.note("own_stop_cont_ms_"+s.name, w.Figures.Downtime)
	if s == gapSizes[0] {
		b.note("gate_ms", w.Figures.Vote+w.Figures.Commit+w.Figures.Run)
	}
	return b.end(ctx)
}

// still notes how long godwit says that a guest stood still.
func (b *liveBench) still(ctx context.Context, figure string, s shape, way string, flags ...string) error {
	if err := b.boot(ctx, s, way, flags...); err != nil {
		return err
	}
	w, _, err := b.liveMove(ctx)
	if err != nil {
		return err
	}
	if tracked := w.Figures.Tracking != "content"; tracked != (way == "auto") {
		return fmt.Errorf("%s: tracked by %s where %s was asked for", figure, w.Figures.Tracking, way)
	}
	b.note(figure, w.Figures.Downtime)
	return b.end(ctx)
}

func (b *liveBench) dirty(ctx context.Context) error {
	s := shape{ram: 4096, resident: 1300 - 512, idle: liveIdle} // the rest is what it dirties
	return b.still(ctx, "stop_cont_ms_4g_dirty200", s, "auto", "-dirty", fmt.Sprint(dirtyRate))
}

func (b *liveBench) flat(ctx context.Context) error {
	for _, resident := range []int{230, 1300} {
		if err := b.still(ctx, fmt.Sprintf("stop_cont_ms_2g_%d", resident), shape{ram: 2048, resident: resident,
			idle: liveIdle}, "auto"); err != nil {
			return err
		}
	}
	return nil
}

func (b *liveBench) content(ctx context.Context) error {
	return b.still(ctx, "content_stop_cont_ms_2g", shape{ram: 2048, resident: contentResident, idle: liveIdle}, "content")
}
