package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/observer"
)

// gapFigures are of RunRingGap.
func gapFigures() []*Figure {
	all := ringFigures("cloud-hypervisor")
	return slices.DeleteFunc(all, func(f *Figure) bool {
		return !strings.HasSuffix(f.Name, "_512m") || strings.Contains(f.Name, "wake") || strings.Contains(f.Name, "restore")
	})
}

// RunRingGap measures the gap of a live move alone, and Cloud Hypervisor's own, by turns. It tells what the machine did
// from the last tick here to the first one there.
func RunRingGap(ctx context.Context, log io.Writer, rounds int) (*Result, error) {
	return inRing(log, rounds, gapFigures(), func(b *liveBench) (int, error) {
		b.step = b.gapRound
		return b.ringMoves(ctx, "cloud-hypervisor", time.Now().Add(time.Hour))
	})
}

func (b *liveBench) gapRound(ctx context.Context, _ string, sizes []shape) error {
	s := sizes[0]
	own := func() error {
		if err := b.boot(ctx, s, "auto"); err != nil {
			return err
		}
		watch := b.watchGap(ctx)
		w, c, err := b.liveMove(ctx)
		if err != nil {
			return err
		}
		b.note("gap_ms_"+s.name, ms(c.Gap))
		b.note("stop_cont_ms_"+s.name, w.Figures.Downtime)
		b.tellGap(<-watch, c, w.Figures.Downtime)
		return b.end(ctx)
	}
	rival := func() error {
		b.ports.Forget()
		watch := b.watchGap(ctx)
		if err := b.chOwn(ctx, s, false); err != nil {
			return err
		}
		seen := <-watch
		b.say("    KVM: %s", seen.kvm)
		return nil
	}
	turns := []func() error{own, rival}
	for i := range turns {
		if err := turns[(i+b.round)%len(turns)](); err != nil {
			return errors.Join(err, b.end(ctx))
		}
	}
	b.note("gap_vs_ch_own_"+s.name, b.value("gap_ms_"+s.name)/b.value("ch_gap_ms_"+s.name))
	return nil
}

// gapSeen is what was seen of the machine while a guest stood still.
type gapSeen struct {
	silent, first map[string]int // processor time of each process, in ms
	kvm           string
	events        []byte // of the kernel
}

// silence is how long a guest that has not been heard for is taken to stand still.
const silence = 150 * time.Millisecond

// watchGap looks at the processes once the guest is silent, and again once it is heard on the other side.
func (b *liveBench) watchGap(ctx context.Context) <-chan gapSeen {
	out := make(chan gapSeen, 1)
	traceEvents()
	go func() {
		var seen gapSeen
		for ctx.Err() == nil && !b.ports.Arrived(1) {
			last := b.ports.Heard(0)
			switch {
			case last.IsZero():
			case time.Since(last) < silence:
				seen.silent = nil
			case seen.silent == nil:
				seen.silent = processTimes()
			}
			_ = observer.Pause(ctx, 8*time.Millisecond)
		}
		seen.events = tracedEvents()
		seen.kvm = kvmCounters()
		seen.first = processTimes()
		out <- seen
	}()
	return out
}

// processTimes answers the processor time of each process, in ms.
func processTimes() map[string]int {
	out := map[string]int{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is one
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		name, rest, ok := bytes.Cut(text, []byte(") "))
		f := strings.Fields(string(rest))
		if !ok || len(f) < 13 {
			continue
		}
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		out[strings.Replace(string(name), " (", " ", 1)] = (user + system) * 10
	}
	return out
}

// kvmCounters tells what KVM counts of each VM.
func kvmCounters() string {
	const root = "/sys/kernel/debug"
	if _, err := os.Stat(root + "/kvm"); err != nil {
		_ = unix.Mount("debugfs", root, "debugfs", 0, "") // without it nothing is told
	}
	var out []string
	all, _ := filepath.Glob(root + "/kvm/*-*")
	for _, dir := range all {
		line := filepath.Base(dir)
		for _, name := range []string{"exits", "pf_taken", "pf_fixed", "halt_exits", "io_exits", "mmio_exits",
			"pages_4k", "pages_2m"} {
			if n, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				line += fmt.Sprintf(" %s %s", name, bytes.TrimSpace(n))
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

// toldTicks is of how many ticks on each side is told.
const toldTicks = 6

// tellGap tells it by time from the last tick here on.
func (b *liveBench) tellGap(seen gapSeen, c observer.Crossing, still float64) {
	here, there := b.ports.Around(0, 1, toldTicks)
	var line []string
	for _, t := range append(here, there...) {
		line = append(line, fmt.Sprintf("%d at %.0f", t.Counter, ms(t.At.Sub(c.Last.At))))
	}
	b.say("    ticks: %s", strings.Join(line, ", "))
	type one struct {
		name string
		took int
	}
	var used []one
	for name, now := range seen.first {
		if took := now - seen.silent[name]; seen.silent != nil && took > 0 {
			used = append(used, one{name, took})
		}
	}
	slices.SortFunc(used, func(x, y one) int { return cmp.Compare(y.took, x.took) })
	b.say("    processor time from %v of silence to the first tick, in ms: %v", silence, used)
	b.say("    KVM: %s", seen.kvm)
	cont := b.tellLogs(c)
	b.tellEvents(seen.events, []time.Time{c.Last.At, cont.Add(-time.Duration(still * float64(time.Millisecond))), cont,
		c.First.At})
}

var timeOf = regexp.MustCompile(`time="?([0-9T:.+Z-]+)`)

// tellLogs tells what programs have logged from a moment before the gap to one after it, and answers when the VM was
// resumed.
func (b *liveBench) tellLogs(c observer.Crossing) (cont time.Time) {
	all, _ := filepath.Glob(filepath.Join(b.h.Dir, "log", "*.log"))
	type entry struct {
		at   time.Time
		line string
	}
	var lines []entry
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			m := timeOf.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, m[1])
			if err == nil && at.After(c.Last.At.Add(-time.Second)) && at.Before(c.First.At.Add(time.Second)) {
				rest := strings.TrimSpace(line[strings.Index(line, m[1])+len(m[1]):])
				if strings.Contains(line, "name=resume ") {
					cont = at
				}
				lines = append(lines, entry{at, filepath.Base(path) + " " + rest[:min(len(rest), 150)]})
			}
		}
	}
	slices.SortStableFunc(lines, func(x, y entry) int { return x.at.Compare(y.at) })
	for _, l := range lines[:min(len(lines), 120)] {
		b.say("    %6.0f %s", ms(l.at.Sub(c.Last.At)), l.line)
	}
	return cont
}
