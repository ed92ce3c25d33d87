package ring

import (
	"cmp"
	"slices"
)

// usualCost is that of a case whose line has none, in seconds.
const usualCost = 60

// Lanes divides cases among at most n grounds that run side by side, so that they end at about the same time. A lane
// has the order of the list. A ground has one processor, so it is no faster with two cases at once.
func Lanes(cases []Case, n int) [][]Case {
	lanes, costs := make([][]Case, max(n, 1)), make([]int, max(n, 1))
	largest := slices.Clone(cases)
	slices.SortStableFunc(largest, func(a, b Case) int { return cmp.Compare(b.price(), a.price()) })
	at := map[string]int{}
	for _, c := range largest {
		least := slices.Index(costs, slices.Min(costs))
		costs[least] += c.price()
		at[c.ID()] = least
	}
	for _, c := range cases {
		lanes[at[c.ID()]] = append(lanes[at[c.ID()]], c)
	}
	return slices.DeleteFunc(lanes, func(lane []Case) bool { return len(lane) == 0 })
}

func (c Case) price() int { return cmp.Or(c.cost, usualCost) }

// IDs are the names of cases in results.
func IDs(cases []Case) (all []string) {
	for _, c := range cases {
		all = append(all, c.ID())
	}
	return all
}
