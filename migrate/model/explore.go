package model

import (
	"slices"
	"strings"
)

// Result of a search.
type Result struct {
	States     int
	Stuck      int                 // states that cannot reach a settled one (I4)
	Violations map[string][]string // by name: the labels of a shortest trace
}

// step is how a state was first reached.
type step[S comparable] struct {
	label  string
	before S
}

// Explore searches all states breadth first.
func Explore(m Mutation) Result {
	return search(initial(), func(s State, to func(string, State)) { steps(s, m, to) }, State.broken, State.settled)
}

// search goes through all states that steps lead to from start, breadth first.
func search[S comparable](start S, steps func(S, func(string, S)), wrong func(S) []string,
	settled func(S) bool) Result {
	reached := map[S]step[S]{start: {}}
	before := map[S][]S{}
	broken := map[string]step[S]{}
	queue := []S{start}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		steps(s, func(label string, after S) {
			before[after] = append(before[after], s)
			for _, name := range wrong(after) {
				if _, ok := broken[name]; !ok {
					broken[name] = step[S]{label, s}
				}
			}
			if _, ok := reached[after]; !ok {
				reached[after] = step[S]{label, s}
				queue = append(queue, after)
			}
		})
	}
	result := Result{States: len(reached), Stuck: len(reached) - len(settling(reached, before, settled)),
		Violations: map[string][]string{}}
	for name, hit := range broken {
		result.Violations[name] = trace(reached, hit)
	}
	return result
}

// settling answers the states from which a settled one can be reached.
func settling[S comparable](reached map[S]step[S], before map[S][]S, settled func(S) bool) map[S]bool {
	can := map[S]bool{}
	var stack []S
	add := func(s S) {
		if !can[s] {
			can[s] = true
			stack = append(stack, s)
		}
	}
	for s := range reached {
		if settled(s) {
			add(s)
		}
	}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, b := range before[s] {
			add(b)
		}
	}
	return can
}

func trace[S comparable](reached map[S]step[S], hit step[S]) []string {
	labels := []string{hit.label}
	for s := hit.before; reached[s].label != ""; s = reached[s].before {
		labels = append(labels, reached[s].label)
	}
	slices.Reverse(labels)
	return labels
}

// Trace writes a trace on one line.
func Trace(labels []string) string { return strings.Join(labels, " > ") }
