package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"godwit.dev/godwit/integration/harness"
)

// PodResult is out/demo-pod.json. All of it was seen from outside the VM, through CRI and the logs on the nodes. What
// could not be measured is null.
type PodResult struct {
	Containers *int  `json:"containers"`
	NonceSame  *bool `json:"nonce_same"`      // in the memory of redis
	CounterOK  *bool `json:"counter_ok"`      // it goes on after each change of the node
	TCPOK      *bool `json:"tcp_ok"`          // one connection between two containers, from the boot to the end
	FilesOK    *bool `json:"files_ok"`        // a file in the volume that the containers share has each count once
	LogsOK     *bool `json:"logs_ok"`         // those of all nodes in a row have each count once, in order
	Duplicates *int  `json:"duplicates_seen"` // counts that were told more than once
	Slept      *bool `json:"slept"`
	MovedLive  *bool `json:"moved_live"`
}

// Check answers what is wrong with the figures; nothing is good.
func (r PodResult) Check() (wrong []string) {
	wrong = append(allTrue([]check{
		{"nonce_same", r.NonceSame}, {"counter_ok", r.CounterOK}, {"tcp_ok", r.TCPOK}, {"files_ok", r.FilesOK},
		{"logs_ok", r.LogsOK}, {"slept", r.Slept}, {"moved_live", r.MovedLive},
	}), noDuplicates(r.Duplicates)...)
	if r.Containers == nil || *r.Containers != 3 {
		wrong = append(wrong, "containers is "+show(r.Containers, "%d")+", want 3")
	}
	return wrong
}

// Write stores the result so that a reader never sees half of it.
func (r PodResult) Write(path string) error { return harness.WriteResult(path, r) }

// Table prints the result for people.
func (r PodResult) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("containers in one VM", show(r.Containers, "%d"))
	row("slept, moved live", yes(r.Slept)+", "+yes(r.MovedLive))
	row("same nonce, counter goes on", yes(r.NonceSame)+", "+yes(r.CounterOK))
	row("TCP connection stays, files whole", yes(r.TCPOK)+", "+yes(r.FilesOK))
	row("logs without a gap, told twice", yes(r.LogsOK)+", "+show(r.Duplicates, "%d"))
	return t.Flush()
}
