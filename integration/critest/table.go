package critest

import (
	"fmt"
	"io"
)

// Table says the result to a person.
func (r *Result) Table(w io.Writer) {
	fmt.Fprintf(w, "%s of containerd %s: %s passed %d, failed %d, skipped %d; %s passed %d, failed %d, skipped %d; "+
		"%.1f %% of what %s passes\n", r.Suite, r.Release, r.Handler, r.Passed, r.Failed, r.Skipped, Control, r.RuncPassed,
		r.RuncFailed, r.RuncSkipped, r.Shared, Control)
	for _, s := range r.Unknown {
		fmt.Fprintf(w, "not explained: %s: %s: %s\n", s.Name, s.State, s.Why)
	}
	for _, s := range r.Stale {
		fmt.Fprintf(w, "wrong in the list of known ones: %s\n", s)
	}
	for _, s := range r.Below {
		fmt.Fprintf(w, "%s fails a spec of its floor: %s\n", Control, s)
	}
}
