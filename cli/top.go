package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// processesDocument is what top prints.
type processesDocument struct {
	Processes []processDocument `json:"processes"`
}

// processDocument is one, with the ids that it has in the VM.
type processDocument struct {
	PID     int    `json:"pid"`
	Parent  int    `json:"parentPid"`
	User    string `json:"user"`
	UID     int    `json:"uid"`
	State   string `json:"state"`
	Memory  uint64 `json:"memoryBytes"`
	CPU     int64  `json:"cpuMs"`
	Started string `json:"startedTime"` // RFC 3339
	Command string `json:"command"`
}

func processOf(p client.GuestProcess) processDocument {
	return processDocument{p.PID, p.Parent, p.User, p.UID, p.State, p.Memory, p.CPU,
		time.Unix(p.Started, 0).UTC().Format(time.RFC3339), p.Command}
}

func newTop(opts *options) *cobra.Command {
	flags := screen.ListFlags{}
	cmd := &cobra.Command{
		Use:   "top VM",
		Short: "List the processes of a VM that runs",
		Long: "List the processes of the container in a VM of this node, whatever its image has. Their ids are those that\n" +
			"they have in the VM. CPU is the time that a process has used since its start.",
		RunE: opts.resolved(func(cmd *cobra.Command, _ []string, c *client.Client, vm *nodev1.VM) error {
			all, err := c.Top(cmd.Context(), vm)
			if err != nil {
				return fmt.Errorf("list the processes of %s: %w", vm.GetId(), err)
			}
			l := screen.List{
				Columns: []screen.Column{{Title: "PID", Right: true}, {Title: "PPID", Right: true}, {Title: "USER"},
					{Title: "STATE"}, {Title: "CPU", Right: true}, {Title: "MEMORY", Right: true}, {Title: "AGE"},
					{Title: "COMMAND", Keep: true}},
				Whole: func(left []screen.Item) any {
					return processesDocument{screen.Values[processDocument](left)}
				},
			}
			for _, p := range all {
				pid := fmt.Sprint(p.PID)
				l.Items = append(l.Items, screen.Item{Value: processOf(p), Name: pid, ID: pid, Row: []string{pid,
					fmt.Sprint(p.Parent),
					p.User, p.State, (time.Duration(p.CPU) * time.Millisecond).String(), screen.Bytes(p.Memory),
					screen.Age(p.Age(time.Now())), p.Command}})
			}
			return opts.list(cmd, l, flags)
		}),
	}
	flags.Add(cmd.Flags())
	return cmd
}
