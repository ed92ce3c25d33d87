package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// Pauses between two looks.
const (
	statsFirst = time.Second     // the first figure of the CPU is of so long
	statsPause = 2 * time.Second // of the live table
)

// watched are the VMs whose figures are shown, and their last figures.
type watched struct {
	client figures
	named  []*nodev1.VM // empty: all that run
	last   map[string]*client.Stats
}

// figures are what package client is asked for.
type figures interface {
	Running(ctx context.Context) ([]*nodev1.VM, error)
	Stats(ctx context.Context, vm *nodev1.VM) (*client.Stats, error)
}

// noFigures are VMs of a look that were asked in vain, and why.
type noFigures struct {
	vms []string
	why []error
}

// statsDocument is what stats prints.
type statsDocument struct {
	VMs []shownStats `json:"vms"`
}

// shownStats is a row.
type shownStats struct {
	*client.Stats
	Percent float64 `json:"cpuPercent"` // of one CPU, since the look before
}

func newStats(opts *options) *cobra.Command {
	once, flags := false, screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "stats [VM...]",
		Short: "Show what VMs of this node use: CPU, memory, network, disks",
		Long: "Show what the VMs of this node use, or those that are named. At a terminal the table stays and is renewed.\n" +
			"HOST is what the host's memory holds of the VM's RAM: the rest is in the balloon, or was never used.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			w := &watched{client: c, last: map[string]*client.Stats{}}
			for _, arg := range args {
				vm, err := c.Resolve(cmd.Context(), arg)
				if err != nil {
					return err
				}
				w.named = append(w.named, vm)
			}
			if _, _, err := w.look(cmd.Context()); err != nil {
				return err
			}
			live := !once && opts.table(flags) && screen.Terminal(opts.rawOut)
			for pause := statsFirst; ; pause = statsPause {
				select {
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				case <-time.After(pause):
				}
				rows, left, err := w.look(cmd.Context())
				if err != nil {
					return err
				}
				if !live {
					return opts.printStats(cmd, rows, left, flags)
				}
				var frame bytes.Buffer
				if err := statsList(rows, left.vms).Print(&frame, opts.format(), flags); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(opts.rawOut, "\x1b[H\x1b[J%s", frame.String()); err != nil {
					return err
				}
			}
		},
	}
	flags.Add(cmd.Flags())
	cmd.Flags().BoolVar(&once, "no-stream", false, "print the table once")
	return cmd
}

// printStats prints the figures. VMs whose figures could not be read have dashes in a table, and are the error.
func (o *options) printStats(cmd *cobra.Command, rows []shownStats, left noFigures, flags screen.ListFlags) error {
	var dashes []string
	if o.table(flags) {
		dashes = left.vms
	}
	return errors.Join(append([]error{o.list(cmd, statsList(rows, dashes), flags)}, left.why...)...)
}

// look takes the figures. Of all VMs, one that has gone meanwhile is left out. One that cannot be asked is told: it may
// run.
func (w *watched) look(ctx context.Context) (rows []shownStats, left noFigures, err error) {
	vms := w.named
	if len(vms) == 0 {
		if vms, err = w.client.Running(ctx); err != nil {
			return nil, left, err
		}
	}
	for _, vm := range vms {
		now, err := w.client.Stats(ctx, vm)
		if err != nil && (len(w.named) > 0 || ctx.Err() != nil) {
			return nil, left, errors.Join(err, ctx.Err())
		}
		if err != nil {
			if !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
				left.vms, left.why = append(left.vms, fullName(vm)), append(left.why, err)
			}
			continue
		}
		row := shownStats{Stats: now}
		if old := w.last[now.VM]; old != nil && now.CPU > old.CPU {
			row.Percent = 100 * float64(now.CPU-old.CPU) / float64(max(1, now.Time.Sub(old.Time).Microseconds()))
		}
		w.last[now.VM], rows = now, append(rows, row)
	}
	return rows, left, nil
}

// statsList is the table. VMs without figures have dashes.
func statsList(rows []shownStats, without []string) screen.List {
	l := screen.List{
		Columns: []screen.Column{{Title: "VM", Keep: true}, {Title: "CPU", Right: true}, {Title: "MEMORY/LIMIT", Right: true},
			{Title: "HOST/RAM", Right: true}, {Title: "NET IN/OUT", Right: true}, {Title: "DISK READ/WRITTEN", Right: true},
			{Title: "PIDS", Right: true}},
		Whole: func(left []screen.Item) any { return statsDocument{screen.Values[shownStats](left)} },
	}
	for _, vm := range without {
		row := []string{vm}
		for range l.Columns[1:] {
			row = append(row, "-")
		}
		l.Items = append(l.Items, screen.Item{Value: shownStats{Stats: &client.Stats{VM: vm}}, Name: vm, ID: vm, Row: row})
	}
	both := func(a, b uint64) string { return screen.Bytes(a) + "/" + screen.Bytes(b) }
	for _, r := range rows {
		network, host := "-", "-"
		if r.Received != nil && r.Sent != nil {
			network = both(*r.Received, *r.Sent)
		}
		if r.RAM > 0 {
			host = both(r.Resident, r.RAM)
		}
		l.Items = append(l.Items, screen.Item{Value: r, Name: r.VM, ID: r.VM, Row: []string{r.VM,
			fmt.Sprintf("%.1f%%", r.Percent), both(r.Memory, r.Limit), host, network, both(r.Read, r.Written),
			fmt.Sprint(r.Pids)}})
	}
	return l
}
