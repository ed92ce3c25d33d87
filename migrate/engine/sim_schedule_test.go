package engine

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/containerd/errdefs"
)

// schedule runs actors one at a time, each up to its next yield. The seed chooses which one is next, so that a seed
// is a history.
type schedule struct {
	rng    *rand.Rand
	actors []*actor
	now    *actor
	faults bool // links, stores and processes fail
	rare   int  // times rarer than in other histories
	twice  int  // percent of the requests come again
	late   []func()
}

// actor is a controller's loop, or a call that a node works on.
type actor struct {
	name   string
	place  string // what dies with it: a node or a controller
	resume chan struct{}
	paused chan struct{}
	killed bool
	over   bool
}

// died is what the code of a killed actor is left by.
type died struct{}

func (s *schedule) spawn(name, place string, do func()) *actor {
	a := &actor{name: name, place: place, resume: make(chan struct{}), paused: make(chan struct{})}
	s.actors = append(s.actors, a)
	go func() {
		defer func() {
			a.over = true
			if e := recover(); e != nil && e != any(died{}) {
				panic(e)
			}
			a.paused <- struct{}{}
		}()
		<-a.resume
		if !a.killed {
			do()
		}
	}()
	return a
}

// step lets one actor go on.
func (s *schedule) step(a *actor) {
	s.now = a
	a.resume <- struct{}{}
	<-a.paused
	s.now = nil
	if a.over {
		for i, other := range s.actors {
			if other == a {
				s.actors = append(s.actors[:i], s.actors[i+1:]...)
				return
			}
		}
	}
}

// yield lets others go first, and may be where the actor dies.
func (s *schedule) yield() {
	a := s.now
	a.paused <- struct{}{}
	<-a.resume
	if a.killed {
		panic(died{})
	}
}

// kill ends all that works at a place.
func (s *schedule) kill(place string) {
	for _, a := range append([]*actor(nil), s.actors...) {
		if a.place == place {
			a.killed = true
			s.step(a)
		}
	}
}

func (s *schedule) chance(percent int) bool {
	return s.faults && s.rng.IntN(100*max(1, s.rare)) < percent
}

func pick[T any](s *schedule, all []T) T { return all[s.rng.IntN(len(all))] }

// call has a node work on a request. The caller waits; if it dies, the node goes on. What
// the network does to it is chance's.
func call[R any](s *schedule, name, node string, do func() (R, error)) (R, error) {
	s.yield()
	var none R
	silent := func(what string) error {
		return &LinkError{Node: node, Err: fmt.Errorf("%s %s: %w", what, name, errdefs.ErrUnavailable)}
	}
	if s.chance(5) {
		return none, silent("request lost:")
	}
	if s.chance(s.twice) {
		s.late = append(s.late, func() { s.spawn(name+" again", node, func() { _, _ = do() }) })
	}
	var resp R
	var err error
	answered := false
	work := s.spawn(name, node, func() { resp, err = do(); answered = true })
	for !work.over {
		s.yield()
	}
	if !answered {
		return none, silent("node died:")
	}
	if s.chance(5) {
		return none, silent("answer lost:")
	}
	s.yield()
	return resp, err
}

// stored is a call of the records: made or not, its answer may be lost.
func stored[Q, R any](s *schedule, ctx context.Context, method func(context.Context, Q) (R, error), req Q) (R, error) {
	var none R
	s.yield()
	if s.chance(3) {
		return none, fmt.Errorf("store: %w", errdefs.ErrUnavailable)
	}
	resp, err := method(ctx, req)
	s.yield()
	if s.chance(3) {
		return none, fmt.Errorf("store: answer lost: %w", errdefs.ErrUnavailable)
	}
	return resp, err
}
