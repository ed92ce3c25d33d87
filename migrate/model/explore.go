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
type step struct {
	label  string
	before State
}

// Explore searches all states breadth first.
func Explore(m Mutation) Result {
	start := initial()
	reached := map[State]step{start: {}}
	before := map[State][]State{}
	broken := map[string]step{}
	queue := []State{start}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		steps(s, m, func(label string, after State) {
			before[after] = append(before[after], s)
			for _, name := range after.broken() {
				if _, ok := broken[name]; !ok {
					broken[name] = step{label, s}
				}
			}
			if _, ok := reached[after]; !ok {
				reached[after] = step{label, s}
				queue = append(queue, after)
			}
		})
	}
	result := Result{States: len(reached), Stuck: len(reached) - len(settling(reached, before)),
		Violations: map[string][]string{}}
	for name, hit := range broken {
		result.Violations[name] = trace(reached, hit)
	}
	return result
}

// settling answers the states from which a settled one can be reached.
func settling(reached map[State]step, before map[State][]State) map[State]bool {
	can := map[State]bool{}
	var stack []State
	add := func(s State) {
		if !can[s] {
			can[s] = true
			stack = append(stack, s)
		}
	}
	for s := range reached {
		if s.settled() {
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

func trace(reached map[State]step, hit step) []string {
	labels := []string{hit.label}
	for s := hit.before; reached[s].label != ""; s = reached[s].before {
		labels = append(labels, reached[s].label)
	}
	slices.Reverse(labels)
	return labels
}

// Trace writes a trace on one line.
func Trace(labels []string) string { return strings.Join(labels, " > ") }
