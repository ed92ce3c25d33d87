package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Step is one thing that a schedule draws. Whom it meets is chosen among those that it can meet
// when its time has come: VM, Node and Other are in [0, 1), the place in their sorted list.
type Step struct {
	N               int // from 1
	Gap             time.Duration
	Name            string // of a verb or of a kind of fault; Calm
	Fault           bool
	Sound           bool // it comes after a judgement, while nothing is wrong
	VM, Node, Other float64
	For             time.Duration // until a fault is healed
}

func (s Step) String() string {
	text := fmt.Sprintf("%d: after %.1f s %s", s.N, s.Gap.Seconds(), s.Name)
	if s.Fault {
		text += fmt.Sprintf(" for %.1f s", s.For.Seconds())
	}
	return text
}

// Calm is the step at which all faults are healed and everything is judged.
const Calm = "calm"

// perRound steps lie between two of Calm.
const perRound = 30

// Most of what is drawn: the gap before a step, and how long a fault lasts. At the begin of a round
// one of longEach faults is a long one: longer than the patience of a node's rounds.
const (
	maxGap     = 4 * time.Second
	minFault   = 2 * time.Second
	maxFault   = 20 * time.Second
	longFault  = 100 * time.Second
	longEach   = 3
	longWithin = 8
)

// Schedule draws steps: a pure function of its seed, whatever comes of them.
type Schedule struct {
	rng           *rand.Rand
	n             int
	verbs, faults deck
}

// NewSchedule begins the one of a seed. The arguments are what it draws from, each name as many
// times as it shall come in one pass.
func NewSchedule(seed uint64, verbs, faults []string) *Schedule {
	return newSchedule(seed, 1, verbs, faults)
}

func newSchedule(seed, stream uint64, verbs, faults []string) *Schedule {
	return &Schedule{rng: rand.New(rand.NewPCG(seed, stream)), verbs: deck{all: verbs}, faults: deck{all: faults}}
}

// Next draws a step.
func (s *Schedule) Next() Step {
	s.n++
	if s.n%(perRound+1) == 0 {
		return Step{N: s.n, Name: Calm}
	}
	step := Step{N: s.n, Gap: s.between(0, maxGap), Fault: s.rng.IntN(2) == 0, VM: s.rng.Float64(), Node: s.rng.Float64(),
		Other: s.rng.Float64()}
	if !step.Fault {
		step.Name = s.verbs.draw(s.rng)
		return step
	}
	step.Name, step.For = s.faults.draw(s.rng), s.between(minFault, maxFault)
	if s.n%(perRound+1) <= longWithin && s.rng.IntN(longEach) == 0 {
		step.For = longFault
	}
	return step
}

// verb draws one that comes at once, after a judgement.
func (s *Schedule) verb() Step {
	s.n++
	return Step{N: s.n, Name: s.verbs.draw(s.rng), Sound: true, VM: s.rng.Float64(), Node: s.rng.Float64(),
		Other: s.rng.Float64()}
}

// drawnOf names each verb as many times as it shall come in one pass.
func drawnOf(all []verb) (drawn []string) {
	for _, v := range all {
		drawn = append(drawn, slices.Repeat([]string{v.name}, v.weight)...)
	}
	return drawn
}

func (s *Schedule) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rng.Int64N(int64(most-least)))
}

// deck deals all of its names in a random order before one comes again.
type deck struct{ all, left []string }

func (d *deck) draw(rng *rand.Rand) string {
	if len(d.left) == 0 {
		for _, i := range rng.Perm(len(d.all)) {
			d.left = append(d.left, d.all[i])
		}
	}
	name := d.left[0]
	d.left = d.left[1:]
	return name
}
