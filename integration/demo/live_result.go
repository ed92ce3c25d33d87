package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"godwit.dev/godwit/integration/harness"
)

// LiveResult is out/demo-live.json. Mode and passes are godwit's own word; all else was
// measured from outside. What could not be measured is null.
type LiveResult struct {
	Mode          *string  `json:"mode"`
	NonceSame     *bool    `json:"nonce_same"` // and the process that holds it
	RAMBytes      *uint64  `json:"ram_bytes"`
	ResidentBytes *uint64  `json:"resident_bytes"` // of the RAM file at the source
	Passes        *int     `json:"passes"`         // the one in the pause too
	MovedBytes    *uint64  `json:"moved_bytes"`    // that the source's link has sent meanwhile
	DowntimeMS    *float64 `json:"downtime_ms"`    // last beacon at the source's port to the first at the destination's
	TotalMS       *float64 `json:"total_ms"`       // of the command
	CounterOK     *bool    `json:"counter_ok"`     // it goes on
	TCPOK         *bool    `json:"tcp_ok"`         // one connection answers before, meanwhile and after
	DiskOK        *bool    `json:"disk_ok"`        // whole, and longer than before
	BootIDSame    *bool    `json:"boot_id_same"`
	// beacons heard twice, out of order, or from the source after the destination's first
	Duplicates *int `json:"duplicates_seen"`
}

// Check answers what is wrong with the figures themselves; nothing is good. No time is
// too long.
func (r LiveResult) Check() []string {
	wrong := append(allTrue([]check{
		{"nonce_same", r.NonceSame}, {"counter_ok", r.CounterOK}, {"tcp_ok", r.TCPOK}, {"disk_ok", r.DiskOK},
		{"boot_id_same", r.BootIDSame},
	}), noDuplicates(r.Duplicates)...)
	for _, f := range []struct {
		name string
		v    *uint64
	}{{"ram_bytes", r.RAMBytes}, {"resident_bytes", r.ResidentBytes}, {"moved_bytes", r.MovedBytes}} {
		if f.v == nil || *f.v == 0 {
			wrong = append(wrong, f.name+" was not measured")
		}
	}
	for _, f := range []struct {
		name string
		v    *float64
	}{{"downtime_ms", r.DowntimeMS}, {"total_ms", r.TotalMS}} {
		if f.v == nil || *f.v <= 0 {
			wrong = append(wrong, f.name+" was not measured")
		}
	}
	if r.Mode == nil || *r.Mode != "live" {
		wrong = append(wrong, "mode is "+show(r.Mode, "%s")+", want live")
	}
	if r.Passes == nil || *r.Passes < 2 {
		wrong = append(wrong, "passes: none was made while the VM ran")
	}
	return wrong
}

// Write stores the result so that a reader never sees half of it.
func (r LiveResult) Write(path string) error { return harness.WriteResult(path, r) }

// Table prints the result for people.
func (r LiveResult) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("same nonce and process, same boot", yes(r.NonceSame)+", "+yes(r.BootIDSame))
	row("counter goes on, disk whole", yes(r.CounterOK)+", "+yes(r.DiskOK))
	row("TCP connection answers, seen twice", yes(r.TCPOK)+", "+show(r.Duplicates, "%d"))
	row("RAM, resident, sent", mib(r.RAMBytes)+", "+mib(r.ResidentBytes)+", "+mib(r.MovedBytes))
	row("stood still, by its beacons", show(r.DowntimeMS, "%.1f ms"))
	row("in all, passes", show(r.TotalMS, "%.0f ms")+", "+show(r.Passes, "%d"))
	return t.Flush()
}
