package record

import (
	"slices"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// MostRanOn bounds the list of the nodes where a VM has run: older ones are left out.
const MostRanOn = 32

// RanOn are the nodes where a VM has run, each once. once says that they are all and in their order: the VM has come
// back to none of them.
func RanOn(rec *nodev1.Record) (nodes []string, once bool) {
	once = len(rec.GetRanOn()) < MostRanOn
	add := func(node string) (known bool) {
		known = node == "" || slices.Contains(nodes, node)
		if !known {
			nodes = append(nodes, node)
		}
		return known
	}
	for _, node := range rec.GetRanOn() {
		once = !add(node) && once
	}
	var others []string // of a record that an earlier build has made
	for _, s := range rec.GetSnapshots() {
		others = append(others, s.GetNode())
	}
	for _, node := range append(others, rec.GetHome(), rec.GetOwner().GetNode()) {
		once = add(node) && once
	}
	return nodes, once
}
