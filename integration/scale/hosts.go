package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"sync"
	"time"
)

// hosts are the processes of nodes. The first has those that stay connected.
type hosts struct {
	self        []string // this program, as a process of nodes
	dir         string
	controllers []string
	all         []*hostProcess
}

// hostProcess is one of them, with its nodes.
type hostProcess struct {
	from, to int
	turn     sync.Mutex // of orders
	in       io.WriteCloser
	out      *bufio.Reader
	cmd      *exec.Cmd
}

// connected nodes stay so while the others come back. They are in a process of their own, so that
// a claim waits for the controller and not for other nodes of its process.
const connected = 20

// together is how many nodes claim at once, where that is measured.
const together = 64

// processes of nodes, at most 20,000 descriptors each.
const processes = 4

// loadCore and controllerCore keep what is measured apart from what asks.
const (
	controllerCore = "0"
	loadCore       = "1"
)

// startHosts starts the processes; one alone can have nodes do something in turn.
func startHosts(ctx context.Context, self []string, dir string, nodes int, controllers []string, alone bool) (*hosts,
	error) {
	h := &hosts{self: self, dir: dir, controllers: controllers}
	few := min(connected, nodes)
	if alone {
		few = nodes
	}
	bounds := []int{0, few}
	for i := 1; i < processes; i++ {
		bounds = append(bounds, few+(nodes-few)*i/(processes-1))
	}
	for i := range bounds[1:] {
		if bounds[i] == bounds[i+1] {
			continue
		}
		nice := "10"
		if i == 0 {
			nice = "0"
		}
		args := append([]string{"-c", loadCore, "nice", "-n", nice}, self...)
		p := &hostProcess{from: bounds[i], to: bounds[i+1], cmd: exec.CommandContext(context.WithoutCancel(ctx),
			"taskset", args...)}
		p.cmd.Stderr = os.Stderr
		in, err := p.cmd.StdinPipe()
		if err != nil {
			return h, err
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			return h, err
		}
		p.in, p.out = in, bufio.NewReader(out)
		if err := p.cmd.Start(); err != nil {
			return h, fmt.Errorf("start a process of nodes: %w", err)
		}
		h.all = append(h.all, p)
	}
	return h, nil
}

// end the processes: their orders end.
func (h *hosts) end() error {
	var errs []error
	for _, p := range h.all {
		errs = append(errs, p.in.Close())
	}
	for _, p := range h.all {
		errs = append(errs, p.cmd.Wait())
	}
	return errors.Join(errs...)
}

// order has each process do its part of an order, and joins what they answer.
func (h *hosts) order(o Order) (*Answer, error) {
	o.Dir, o.Controllers = h.dir, h.controllers
	joined := &Answer{Drops: map[string]int{}, Generations: map[string]uint64{}, Calls: map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, p := range h.all {
		part := o
		if part.From, part.To = max(o.From, p.from), min(o.To, p.to); part.From >= part.To {
			continue
		}
		wg.Go(func() {
			a, err := p.order(part)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			joined.join(a)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return joined, fmt.Errorf("%s nodes %d to %d: %w", o.Do, o.From, o.To, err)
	}
	return joined, nil
}

func (p *hostProcess) order(o Order) (*Answer, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	line, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	text, err := p.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("a process of nodes has ended: %w", err)
	}
	a := &Answer{}
	if err := json.Unmarshal(text, a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (a *Answer) join(b *Answer) {
	if b == nil {
		return
	}
	a.Served += b.Served
	if b.Last.After(a.Last) {
		a.Last = b.Last
	}
	a.Begun = append(a.Begun, b.Begun...)
	a.MS, a.Failed, a.Ended = append(a.MS, b.MS...), append(a.Failed, b.Failed...), append(a.Ended, b.Ended...)
	a.Took = max(a.Took, b.Took)
	for k, v := range b.Drops {
		a.Drops[k] += v
	}
	for k, v := range b.Calls {
		a.Calls[k] += v
	}
	maps.Copy(a.Generations, b.Generations)
}

// served waits until all of these nodes are, and answers when the last of them was.
func (h *hosts) served(ctx context.Context, from, to int, bound time.Duration) (time.Time, error) {
	deadline := time.Now().Add(bound)
	for {
		a, err := h.order(Order{Do: "served", From: from, To: to})
		if err != nil {
			return time.Time{}, err
		}
		if a.Served == to-from {
			return a.Last, nil
		}
		if time.Now().After(deadline) {
			return time.Time{}, fmt.Errorf("%d of %d nodes are served after %v", a.Served, to-from, bound)
		}
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

const pollInterval = 100 * time.Millisecond
