package engine

import (
	"time"
)

// core is what every type of this package works with: the parts, the options, and the changes that an
// operation makes to its record (operation_records.go, operation_lost.go).
type core struct {
	Parts
	opts   Options
	now    func() time.Time
	prompt time.Duration // that an operation's success waits for deletions
}

// promptBound is what the success of an operation waits for deletions.
const promptBound = 2 * time.Second
