package moves

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Modes of a move. Auto becomes one of the others before anything is made.
const (
	ModeLive = "live"
	ModeCold = "cold"
	ModeAuto = "auto"
)

// Conditions under which a move gives up by itself.
const (
	AbortOnDowntime = "downtime" // the VM has stood still for longer than it may, before the commit
	AbortOnStall    = "stall"    // no byte has moved for so long as the controller allows
)

// Bounds of a move's knobs.
const (
	maxDowntime = 10 * time.Minute
	minTimeout  = 5 * time.Second
	maxTimeout  = 24 * time.Hour
	minRate     = 64 << 10
)

// Check answers InvalidArgument for knobs that no move can have, and names them all. The
// controller asks for each order; who gives one may ask before.
func Check(req *nodev1.MigrateRequest) error {
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if m := req.GetMode(); !slices.Contains([]string{"", ModeLive, ModeCold, ModeAuto}, m) {
		bad("mode %q is not live, cold or auto", m)
	}
	if d := time.Duration(req.GetDowntimeMs()) * time.Millisecond; d < 0 || d > maxDowntime {
		bad("downtime %v is not between 0 and %v", d, maxDowntime)
	}
	if d := time.Duration(req.GetTimeoutMs()) * time.Millisecond; d != 0 && (d < minTimeout || d > maxTimeout) {
		bad("timeout %v is not between %v and %v", d, minTimeout, maxTimeout)
	}
	if b := req.GetBandwidth(); b != 0 && b < minRate {
		bad("bandwidth of %d bytes a second is less than %d", b, minRate)
	}
	for _, a := range req.GetAbortOn() {
		if a != AbortOnDowntime && a != AbortOnStall {
			bad("abort-on %q is not %s or %s", a, AbortOnDowntime, AbortOnStall)
		}
	}
	if slices.Contains(req.GetAbortOn(), AbortOnDowntime) && req.GetDowntimeMs() == 0 {
		bad("abort-on %s needs a downtime", AbortOnDowntime)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(wrong, "; "), errdefs.ErrInvalidArgument)
}

// CheckMode is Check of a mode alone; none is Auto.
func CheckMode(mode string) error { return Check(&nodev1.MigrateRequest{Mode: mode}) }
