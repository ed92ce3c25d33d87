package bench

import (
	"math"
	"slices"
)

// Source says who showed a figure.
type Source string

// The sources. Own figures are godwit's: they stand next to the outside ones to explain them and decide nothing.
const (
	Guest  Source = "guest"  // a line or a beacon of the guest, timed outside
	Wire   Source = "wire"   // the guest's beacons and the registry's own files
	Kernel Source = "kernel" // the host kernel's accounting
	Tool   Source = "tool"   // a program's start and end
	Ratio  Source = "ratio"  // of two figures of the same round
	Own    Source = "godwit" // godwit's own status
)

// Figure is one measured quantity: one value a round.
type Figure struct {
	Name   string     `json:"name"`
	Unit   string     `json:"unit"`
	Source Source     `json:"source"`
	What   string     `json:"what"`
	Median *float64   `json:"median"`
	Low    *float64   `json:"low,omitempty"` // the true median is from Low to High with 95 %
	High   *float64   `json:"high,omitempty"`
	Raw    []*float64 `json:"raw"` // null: this round has no value
	Most   *float64   `json:"goal_at_most,omitempty"`
	Least  *float64   `json:"goal_at_least,omitempty"`
	Met    *bool      `json:"goal_met,omitempty"`

	in string // group, of a figure whose name does not begin with it
}

// set notes the value of a round.
func (f *Figure) set(round int, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return // stays null, which fails
	}
	f.Raw[round] = &v
	f.settle()
}

// settle computes the median once every round has a value.
func (f *Figure) settle() {
	var all []float64
	for _, v := range f.Raw {
		if v == nil {
			return
		}
		all = append(all, *v)
	}
	m := median(all)
	f.Median = &m
	low, high := interval(all)
	f.Low, f.High = &low, &high
	if f.Most != nil || f.Least != nil {
		met := (f.Most == nil || m <= *f.Most) && (f.Least == nil || m >= *f.Least)
		f.Met = &met
	}
}

// median of at least one value.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
