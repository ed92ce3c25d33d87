package dashboard

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/visible"
)

// functions are the words of the templates. What they answer is text: html/template escapes it.
var functions = template.FuncMap{
	"size": size, "ago": ago, "when": when, "owner": owner, "status": status, "kind": kind, "phase": phase,
	"percent": percent, "ms": milliseconds, "text": visible.Line, "short": short, "list": addresses, "mark": mark,
	"gibHours": gibHours, "timeline": timeline, "why": record.Why, "column": column,
	"inc": func(i int) int { return i + 1 }, "steps": steps,
	"doubt":  func(what string, l lister, now time.Time) doubt { return doubt{what, l, now} },
	"moving": func(s *nodev1.StatusResponse) bool { return s.GetTransfer().GetSentBytes() > 0 },
}

// maxDepth bounds how far a line of snapshots is set in.
const maxDepth = 8

// column draws where in the tree a snapshot stands, as git log --graph does.
func column(b record.Branch) string { return strings.Repeat("| ", min(b.Depth, maxDepth)) + "*" }

// size is a number of bytes for a person; nothing is a dash.
func size(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1<<20:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Bounds of the units of ago.
const (
	minutes = time.Minute
	hours   = time.Hour
	days    = 48 * time.Hour
)

// ago is how long before now a time was, in its largest unit.
func ago(now, at time.Time) string {
	d := max(0, now.Sub(at))
	switch {
	case d < minutes:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < hours:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < days:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// when is a time of a message.
func when(unixNano int64) time.Time { return time.Unix(0, unixNano).UTC() }

// owner is the node that a VM is on, or the short digest that it sleeps as.
func owner(o *nodev1.Owner) string {
	switch {
	case o.GetDigest() != "":
		return short(o.GetDigest())
	case o.GetNode() != "":
		return visible.Line(o.GetNode())
	}
	return "-"
}

// short is the begin of a digest: enough to know it again.
func short(digest string) string {
	_, hex, found := strings.Cut(digest, ":")
	if !found {
		hex = digest
	}
	return visible.Line(visible.Cut(hex, 12))
}

// status is a VM's state in the words of a user.
func status(vm *nodev1.VMInfo) string {
	switch s := vm.GetStatus(); s {
	case "hibernated":
		return "asleep"
	case "owned":
		return "on its node"
	default:
		return visible.Line(s)
	}
}

// mark is the class of a state's colour. It comes from this list, never from foreign text.
func mark(vm *nodev1.VMInfo) string {
	switch vm.GetStatus() {
	case "running", "owned":
		return "good"
	case "hibernated":
		return "asleep"
	case "lost":
		return "bad"
	case "hibernating", "waking", "migrating", "capturing":
		return "busy"
	case "unknown":
		return "doubt"
	}
	return "plain"
}

func kind(op *nodev1.Operation) string {
	switch op.GetKind() {
	case nodev1.Kind_KIND_HIBERNATE:
		return "falls asleep"
	case nodev1.Kind_KIND_WAKE:
		return "wakes"
	case nodev1.Kind_KIND_MIGRATE:
		return "moves"
	case nodev1.Kind_KIND_CHECKPOINT:
		return "checkpoint"
	}
	return "operation"
}

func phase(op *nodev1.Operation) string {
	if op.GetPhase() == nodev1.Phase_PHASE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(op.GetPhase().String(), "PHASE_"), "_", " "))
}

// percent is how far an operation is, 0 to 100, and negative while its whole is not known.
func percent(s *nodev1.StatusResponse) int {
	done, total := s.GetDone(), s.GetTotal()
	if t := s.GetTransfer(); t.GetSentBytes() > 0 {
		done, total = t.GetSentBytes(), t.GetSentBytes()+t.GetLeftBytes()
	}
	if total == 0 {
		return -1
	}
	return int(min(100, 100*float64(done)/float64(total)))
}

func milliseconds(ms float64) string {
	if ms >= 10_000 {
		return fmt.Sprintf("%.1f s", ms/1000)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

func addresses(all []string) string { return visible.Line(strings.Join(all, ", ")) }

// lister is a list of any kind.
type lister interface {
	Stale() bool
	Never() bool
}

// doubt is a list that may not have been read, and what it lists.
type doubt struct {
	What string
	List lister
	Now  time.Time
}

// step is a part of the time that a VM stood still for a move.
type step struct {
	Name string
	Ms   float64
}

func steps(f *nodev1.Figures) []step {
	return []step{{"pause", f.GetStopMs() + f.GetSaveMs()}, {"copy", f.GetCopyMs()}, {"vote", f.GetVoteMs()},
		{"commit", f.GetCommitMs()}, {"run", f.GetRunMs()}}
}
