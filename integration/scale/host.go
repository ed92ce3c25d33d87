package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Order is what a process of nodes is asked to do.
type Order struct {
	Do          string
	Dir         string
	Controllers []string
	From, To    int // nodes
	Count       int
	Every, For  time.Duration
	Together    bool
}

// Answer is what came of it.
type Answer struct {
	Error       string
	Served      int
	Last        time.Time   // the last of them was
	MS          []float64   // of each claim, round, list
	Begun       []time.Time // of each claim
	Took        float64     // ms
	Failed      []string
	Drops       map[string]int
	Generations map[string]uint64
	Ended       []string
	Calls       map[string]int
}

// host is a process of nodes.
type host struct {
	ctx   context.Context
	nodes map[int]*Node
}

// HostMain does orders that come line by line, and answers each, until the lines end.
func HostMain(ctx context.Context, in io.Reader, out io.Writer) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // a storm is told by figures
	log.L.Logger.SetOutput(io.Discard)             // and what ttrpc says of answers that come after a stop
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &host{ctx: ctx, nodes: map[int]*Node{}}
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		var o Order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		a := &Answer{}
		if err := h.do(o, a); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (h *host) do(o Order, a *Answer) error {
	switch o.Do {
	case "start":
		return h.each(o, func(n *Node) error { return n.Start(h.ctx, o.Dir, o.Controllers) })
	case "stop":
		return h.each(o, func(n *Node) error { n.Stop(); return nil })
	case "served":
		for _, n := range h.of(o) {
			if at, ok := n.served(); ok {
				a.Served++
				if at.After(a.Last) {
					a.Last = at
				}
			}
		}
		return nil
	case "claim":
		h.claims(o, a)
		return nil
	case "burst":
		return h.burst(o, a)
	case "rounds":
		return h.timed(o, a, func() error { return h.nodes[o.From].aRound(h.ctx) })
	case "ps":
		return h.timed(o, a, func() error {
			_, err := h.nodes[o.From].records.RecordsService.List(h.ctx, &nodev1.ListRequest{})
			if err == nil {
				_, err = h.nodes[o.From].records.Owed(h.ctx, &nodev1.OwedRequest{})
			}
			return err
		})
	case "state":
		h.state(o, a)
		return nil
	}
	return fmt.Errorf("order %q is not known", o.Do)
}

// of are the nodes that an order is for; those that are new are made.
func (h *host) of(o Order) (all []*Node) {
	for i := o.From; i < o.To; i++ {
		if h.nodes[i] == nil {
			h.nodes[i] = &Node{index: i, shims: newShims(i)}
		}
		all = append(all, h.nodes[i])
	}
	return all
}

// each does something with all of them at once.
func (h *host) each(o Order, do func(*Node) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, n := range h.of(o) {
		wg.Go(func() {
			if err := do(n); err != nil {
				mu.Lock()
				defer mu.Unlock()
				first = err
			}
		})
	}
	wg.Wait()
	return first
}

// claims has each node claim one VM after another, one each interval, for some time.
func (h *host) claims(o Order, a *Answer) {
	var mu sync.Mutex
	end := time.Now().Add(o.For)
	_ = h.each(o, func(n *Node) error {
		time.Sleep(o.Every * time.Duration(n.index%20) / 20)
		tick := time.NewTicker(o.Every)
		defer tick.Stop()
		for i := 0; time.Now().Before(end); i++ {
			begun := time.Now()
			err := n.claim(h.ctx, i%vmsOfNode)
			mu.Lock()
			a.Begun = append(a.Begun, begun)
			if a.MS = append(a.MS, ms(time.Since(begun))); err != nil {
				a.Failed = append(a.Failed, err.Error())
			}
			mu.Unlock()
			<-tick.C
		}
		return nil
	})
}

// burst has each node claim one VM, all together or one after the other.
func (h *host) burst(o Order, a *Answer) (err error) {
	begun := time.Now()
	if o.Together {
		err = h.each(o, func(n *Node) error { return n.claim(h.ctx, 0) })
	} else {
		for _, n := range h.of(o) {
			if err = n.claim(h.ctx, 0); err != nil {
				break
			}
		}
	}
	a.Took = ms(time.Since(begun))
	return err
}

func (h *host) timed(o Order, a *Answer, do func() error) error {
	for range o.Count {
		begun := time.Now()
		if err := do(); err != nil {
			return err
		}
		a.MS = append(a.MS, ms(time.Since(begun)))
	}
	return nil
}

func (h *host) state(o Order, a *Answer) {
	a.Drops, a.Generations, a.Calls = map[string]int{}, map[string]uint64{}, map[string]int{}
	for _, n := range h.of(o) {
		n.shims.mu.Lock()
		for id, g := range n.shims.generation {
			a.Generations[id] = g
		}
		for d, count := range n.shims.drops {
			a.Drops[d] += count
		}
		a.Ended = append(a.Ended, n.shims.ended...)
		n.shims.mu.Unlock()
		if n.records == nil {
			continue
		}
		n.records.mu.Lock()
		for call, count := range n.records.calls {
			a.Calls[call] += count
		}
		n.records.mu.Unlock()
	}
	slices.Sort(a.Ended)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
