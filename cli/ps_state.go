package cli

import (
	"fmt"
	"strings"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

// stateWord is a VM's state in one word of a user.
func stateWord(vm *nodev1.VMInfo) string {
	switch s := vm.GetStatus(); s {
	case "hibernated":
		return "asleep"
	case "migrating":
		return "moving"
	case "owned":
		return "elsewhere"
	default:
		return s
	}
}

// stateText is the state with what is under way. The rare comes first: a column may be cut.
func stateText(vm *nodev1.VMInfo) string {
	state := stateWord(vm)
	if at := vm.GetSleptUnixNano(); at != 0 && state == "asleep" {
		state += " " + screen.Since(at)
	}
	if op := vm.GetOperation(); op != nil {
		state = fmt.Sprintf("%s (%s)", state, lower(op.GetPhase().String(), "PHASE_"))
	}
	if all := vm.GetMissing(); len(all) > 0 {
		state += ", waits for " + strings.Join(all, ", ")
	}
	state += deletionText(vm.GetDeletion())
	if n := vm.GetCleanupPending(); n > 0 {
		state += fmt.Sprintf(", cleanup pending (%d)", n)
	}
	if vm.GetUnwritten() != "" {
		state += ", journal not written"
	}
	if r := vm.GetRestore(); r != "" {
		state += ", restore: " + r
	}
	return state
}

// deletionText says where a VM's deletion after a final snapshot stands.
func deletionText(d *nodev1.Deletion) string {
	switch {
	case d == nil:
		return ""
	case record.Stuck(d):
		return ", not removed"
	case d.GetTries() > 0:
		return fmt.Sprintf(", to be removed (failed tries: %d)", d.GetTries())
	}
	return ", to be removed"
}

// restoreText says how the VM came to its RAM, and why so.
func restoreText(vm *nodev1.VMInfo) string {
	mode, reason := vm.GetRestoreMode(), strings.Join(strings.Fields(vm.GetRestoreReason()), " ")
	if long := []rune(reason); len(long) > maxReason {
		reason = string(long[:maxReason]) + "..."
	}
	if reason != "" {
		mode += " (" + reason + ")"
	}
	return screen.Dash(mode)
}

// maxReason bounds a column, in characters: -o json has all of a reason.
const maxReason = 60
