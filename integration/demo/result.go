package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"godwit.dev/godwit/integration/harness"
)

// Result is out/demo.json. All of it was measured from outside: by what the guest told,
// what passed the wire, and what the node's file system showed. What could not be
// measured is null.
type Result struct {
	NonceSame         *bool    `json:"nonce_same"`
	CounterBefore     *uint64  `json:"counter_before"` // the last one told before the pause
	CounterAfter      *uint64  `json:"counter_after"`  // the first one told after the wake
	BootIDSame        *bool    `json:"boot_id_same"`
	FileOK            *bool    `json:"file_ok"`
	Answers           *bool    `json:"answers"` // at its address
	RAMBytes          *uint64  `json:"ram_bytes"`
	ResidentBytes     *uint64  `json:"resident_bytes"`
	PushedBytes       *uint64  `json:"pushed_bytes"`
	SecondPushedBytes *uint64  `json:"second_pushed_bytes"`
	PauseMS           *float64 `json:"pause_ms"`        // last beacon to the last blob's end on the wire
	DurableMS         *float64 `json:"durable_ms"`      // from there to the accepted manifest
	WakeMS            *float64 `json:"wake_ms"`         // command to first beacon
	FirstAnswerMS     *float64 `json:"first_answer_ms"` // command to first HTTP answer
	VMM               *string  `json:"vmm"`
}

// maxGap is how many beacons may be lost round a wake (of 10 ms each): what was in
// flight at the pause, and what left before the network had learned the way.
const maxGap = 1000

// Check answers what is wrong with the figures themselves; nothing is good.
func (r Result) Check() []string {
	wrong := allTrue([]check{{"nonce_same", r.NonceSame}, {"boot_id_same", r.BootIDSame}, {"file_ok", r.FileOK},
		{"answers", r.Answers}})
	for _, f := range []struct {
		name string
		v    *uint64
	}{
		{"counter_before", r.CounterBefore}, {"counter_after", r.CounterAfter}, {"ram_bytes", r.RAMBytes},
		{"resident_bytes", r.ResidentBytes}, {"pushed_bytes", r.PushedBytes}, {"second_pushed_bytes", r.SecondPushedBytes},
	} {
		if f.v == nil || *f.v == 0 {
			wrong = append(wrong, f.name+" was not measured")
		}
	}
	for _, f := range []struct {
		name string
		v    *float64
	}{{"pause_ms", r.PauseMS}, {"durable_ms", r.DurableMS}, {"wake_ms", r.WakeMS}, {"first_answer_ms", r.FirstAnswerMS}} {
		if f.v == nil || *f.v < 0 {
			wrong = append(wrong, f.name+" was not measured")
		}
	}
	if r.VMM == nil || *r.VMM == "" {
		wrong = append(wrong, "vmm was not seen")
	}
	if b, a := r.CounterBefore, r.CounterAfter; b != nil && a != nil && (*a <= *b || *a > *b+maxGap) {
		wrong = append(wrong, fmt.Sprintf("counter_after %d does not go on from counter_before %d", *a, *b))
	}
	return wrong
}

// check is a figure that is to be true.
type check struct {
	name string
	v    *bool
}

// allTrue names what is not, or was not measured.
func allTrue(all []check) (wrong []string) {
	for _, c := range all {
		switch {
		case c.v == nil:
			wrong = append(wrong, c.name+" was not measured")
		case !*c.v:
			wrong = append(wrong, c.name+" is false")
		}
	}
	return wrong
}

// noDuplicates wants nothing to be seen twice.
func noDuplicates(seen *int) []string {
	switch {
	case seen == nil:
		return []string{"duplicates_seen was not measured"}
	case *seen != 0:
		return []string{fmt.Sprintf("duplicates_seen is %d", *seen)}
	}
	return nil
}

// Write stores the result so that a reader never sees half of it.
func (r Result) Write(path string) error {
	return harness.WriteResult(path, r)
}

// Table prints the result for people.
func (r Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("same nonce, process and boot", yes(r.NonceSame)+", "+yes(r.BootIDSame))
	row("counter before and after", show(r.CounterBefore, "%d")+", "+show(r.CounterAfter, "%d"))
	row("file whole, answers at its address", yes(r.FileOK)+", "+yes(r.Answers))
	row("RAM, of it resident", mib(r.RAMBytes)+", "+mib(r.ResidentBytes))
	row("pushed first, second time", mib(r.PushedBytes)+", "+mib(r.SecondPushedBytes))
	row("stop to last byte pushed, to commit", show(r.PauseMS, "%.0f ms")+", "+show(r.DurableMS, "+ %.0f ms"))
	row("wake to first sign, first answer", show(r.WakeMS, "%.0f ms")+", "+show(r.FirstAnswerMS, "%.0f ms"))
	row("VMM", show(r.VMM, "%s"))
	return t.Flush()
}

func show[T any](v *T, format string) string {
	if v == nil {
		return "not measured"
	}
	return fmt.Sprintf(format, *v)
}

func yes(v *bool) string {
	switch {
	case v == nil:
		return "not measured"
	case *v:
		return "yes"
	}
	return "NO"
}

func mib(v *uint64) string {
	if v == nil {
		return "not measured"
	}
	return fmt.Sprintf("%.1f MiB", float64(*v)/(1<<20))
}
