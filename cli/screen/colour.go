package screen

import "strings"

// Colours of ANSI terminals.
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	blue   = "\x1b[34m"
	plain  = "\x1b[0m"
)

// states that a cell of the column STATE begins with, and their colours.
var states = []struct{ word, colour string }{
	{"ok", green}, {"warn", yellow}, {"FAIL", red},
	{"running", green}, {"up", green}, {"asleep", blue}, {"lost", red}, {"unknown", red}, {"silent", red},
	{"hibernating", yellow}, {"waking", yellow}, {"moving", yellow}, {"paused", yellow}, {"capturing", yellow},
}

// paint colours the cells of states. What they say does not depend on it.
func paint(title, cell string) string {
	if title != "STATE" && title != "STATUS" {
		return cell
	}
	for _, s := range states {
		if strings.HasPrefix(cell, s.word) {
			return s.colour + cell + plain
		}
	}
	return cell
}
