package vmmtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// tick is one line of the guest's.
type tick struct {
	Boot string
	N    int
	// Devices are the MACs of the NICs, and serial=line of each disk but the first, each with a
	// comma after it.
	Devices string
}

// The kernel may write to the same console at any time: what does not match is skipped.
var tickLine = regexp.MustCompile(`tick (\S+) (\d+) (\S*)\.\s*$`)

// guest is what a VM's console shows.
type guest struct {
	ended chan struct{} // closed when the console is

	mu    sync.Mutex
	ticks []tick
	more  chan struct{} // closed and replaced at each line
	text  []string
}

func newGuest() *guest {
	return &guest{ended: make(chan struct{}), more: make(chan struct{})}
}

func (g *guest) listen(r io.Reader) {
	defer close(g.ended)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		g.add(lines.Text())
	}
}

func (g *guest) add(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text = append(g.text, line)
	t, ok := parseTick(line)
	if !ok {
		return
	}
	g.ticks = append(g.ticks, t)
	close(g.more)
	g.more = make(chan struct{})
}

func parseTick(line string) (tick, bool) {
	m := tickLine.FindStringSubmatch(line)
	if m == nil {
		return tick{}, false
	}
	n, err := strconv.Atoi(m[2])
	return tick{Boot: m[1], N: n, Devices: m[3]}, err == nil
}

// last is the newest line, zero before the first.
func (g *guest) last() tick {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ticks) == 0 {
		return tick{}
	}
	return g.ticks[len(g.ticks)-1]
}

// first is the oldest line.
func (g *guest) first() tick {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ticks) == 0 {
		return tick{}
	}
	return g.ticks[0]
}

// await returns the first line, of those to come and the last one, that is as wanted.
func (g *guest) await(ctx context.Context, wanted func(tick) bool) (tick, error) {
	for {
		g.mu.Lock()
		more := g.more
		g.mu.Unlock()
		if t := g.last(); t.N > 0 && wanted(t) {
			return t, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return tick{}, fmt.Errorf("guest does not say it: %w", ctx.Err())
		}
	}
}

func (g *guest) tail() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.text[max(0, len(g.text)-5):], "\n")
}
