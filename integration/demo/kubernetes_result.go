package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"godwit.dev/godwit/integration/harness"
)

// KubernetesResult is out/demo-k8s.json. All of it was seen from outside the VM, on the wire and on the nodes. What
// could not be measured is null.
type KubernetesResult struct {
	NonceSame       *bool    `json:"nonce_same"` // of redis and of a probe, whose process and boot are the same
	CounterOK       *bool    `json:"counter_ok"` // each goes on
	DiskOK          *bool    `json:"disk_ok"`    // whole, and longer than before
	Duplicates      *int     `json:"duplicates_seen"`
	HibernatedWoken *bool    `json:"hibernated_woken"`
	MovedLive       *bool    `json:"moved_live"`
	Drained         *bool    `json:"drained"`  // by kubectl drain: it moved live
	TCPOK           *bool    `json:"tcp_ok"`   // one connection, open during the drain
	PDBHeld         *bool    `json:"pdb_held"` // a budget with 0 allowed disruptions, in each of its states
	Seconds         *float64 `json:"seconds"`  // with the start of the cluster
}

// Check answers what is wrong with the figures; nothing is good.
func (r KubernetesResult) Check() []string {
	return append(allTrue([]check{
		{"nonce_same", r.NonceSame}, {"counter_ok", r.CounterOK}, {"disk_ok", r.DiskOK},
		{"hibernated_woken", r.HibernatedWoken}, {"moved_live", r.MovedLive},
		{"drained", r.Drained}, {"tcp_ok", r.TCPOK}, {"pdb_held", r.PDBHeld},
	}), noDuplicates(r.Duplicates)...)
}

// Write stores the result so that a reader never sees half of it.
func (r KubernetesResult) Write(path string) error { return harness.WriteResult(path, r) }

// Table prints the result for people.
func (r KubernetesResult) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("hibernated and woken, moved live", yes(r.HibernatedWoken)+", "+yes(r.MovedLive))
	row("drained, TCP open, budget held", yes(r.Drained)+", "+yes(r.TCPOK)+", "+yes(r.PDBHeld))
	row("same nonce, counter goes on", yes(r.NonceSame)+", "+yes(r.CounterOK))
	row("disk whole, told twice", yes(r.DiskOK)+", "+show(r.Duplicates, "%d"))
	row("seconds", show(r.Seconds, "%.0f"))
	return t.Flush()
}
