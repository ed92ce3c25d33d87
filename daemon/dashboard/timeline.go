package dashboard

import (
	"fmt"
	"math"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// segment is a part of a move on its bar, whose length is 100.
type segment struct {
	X, Width string
	Class    string // before, pass or pause
	Title    string
}

// part of a move, in milliseconds.
type part struct {
	class, title string
	ms           float64
}

// thin is the least width of what took any time: the pause is a thousandth of many a move.
const thin = 0.6

// timeline puts the parts of a move after one another: what came before its passes, each pass, the pause. Figures are
// a node's word: those that are no times make no bar.
func timeline(f *nodev1.Figures) []segment {
	parts := []part{{"before", "in the queue, and preparing", 0}}
	moved := f.GetDowntimeMs()
	for i, pass := range f.GetPasses() {
		title := fmt.Sprintf("pass %d: %s, %s sent", i+1, milliseconds(pass.GetMs()), size(pass.GetSentBytes()))
		parts = append(parts, part{"pass", title, pass.GetMs()})
		moved += pass.GetMs()
	}
	parts[0].ms = max(0, f.GetTotalMs()-moved)
	parts = append(parts, part{"pause", "the VM stood still: " + milliseconds(f.GetDowntimeMs()), f.GetDowntimeMs()})
	sum := 0.0
	for _, p := range parts {
		if p.ms < 0 || math.IsNaN(p.ms) || math.IsInf(p.ms, 0) {
			return nil
		}
		sum += p.ms
	}
	if sum == 0 || math.IsInf(sum, 0) || float64(len(parts))*thin > 100 {
		return nil
	}
	shown := 100 - thin*float64(len(parts))
	var out []segment
	x := 0.0
	for _, p := range parts {
		if p.ms == 0 {
			continue
		}
		width := thin + shown*p.ms/sum
		out = append(out, segment{fmt.Sprintf("%.2f", x), fmt.Sprintf("%.2f", width), p.class, p.title})
		x += width
	}
	return out
}
