package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// Checks that doctor --fix has a repair of.
const (
	dirsCheck       = "directories"
	keysCheck       = "keys"
	dropInCheck     = "runtime for pods"
	containerdCheck = "containerd"
	daemonCheck     = "godwitd"
	kvmCheck        = "kvm"
	tunCheck        = "tap devices"
)

// repair is what doctor --fix does about a finding. It touches no VM and nothing that runs, and done twice it is as
// done once.
type repair struct {
	does string // as "start godwitd"
	hand string // the command that does it
	do   func(ctx context.Context) error
}

// repairer knows the repair of a check that is not well; nil: there is none that is safe.
type repairer interface {
	repair(check string) *repair
}

// fix repairs what is safe, says each step in a line, and answers what is found after that. It looks again after each
// round, as one repair may make another one possible. dry: it only says what it would do.
func fix(ctx context.Context, out io.Writer, look func(context.Context) []finding, host repairer, dry bool) (
	[]finding, error) {
	tried, failed := map[string]bool{}, 0
	for {
		findings, again := look(ctx), false
		for _, f := range findings {
			if f.OK || ctx.Err() != nil {
				continue
			}
			r := host.repair(f.Check)
			if r == nil || tried[r.does] {
				continue
			}
			tried[r.does] = true
			if r.tell(ctx, out, dry) {
				again = again || !dry
			} else {
				failed++
			}
		}
		if again && ctx.Err() == nil {
			continue
		}
		left(out, findings, func(check string) bool { r := host.repair(check); return r != nil && tried[r.does] })
		if failed > 0 {
			return findings, fmt.Errorf("%d of %d repairs failed. The lines above say which, and what to type: %w", failed,
				len(tried), errdefs.ErrFailedPrecondition)
		}
		return findings, ctx.Err()
	}
}

// tell does the repair and says so; false: it failed.
func (r *repair) tell(ctx context.Context, out io.Writer, dry bool) bool {
	if dry {
		_ = tell(out, "would: %s (%s)\n", r.does, r.hand)
		return true
	}
	if err := r.do(ctx); err != nil {
		_ = tell(out, "failed: %s: %v. To do it by hand: %s\n", r.does, err, r.hand)
		return false
	}
	_ = tell(out, "done: %s\n", r.does)
	return true
}

// left says what is to be done by hand. Told are those checks whose repair was tried.
func left(out io.Writer, findings []finding, told func(check string) bool) {
	shown := 0
	for _, f := range findings {
		if f.OK || told(f.Check) {
			continue
		}
		if shown++; shown > shownFindings {
			continue
		}
		_ = tell(out, "by hand: %s: %s\n", f.Check, f.Remedy)
	}
	if shown == 0 {
		fmt.Fprintln(out, "nothing is left to do by hand")
	}
}
