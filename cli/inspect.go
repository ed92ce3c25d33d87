package cli

import (
	"io"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// inspectionDocument is one of those that inspect prints.
type inspectionDocument struct {
	Namespace string                          `json:"namespace"`
	ID        string                          `json:"id"`
	VM        *screen.Message[*nodev1.VMInfo] `json:"vm,omitempty"`
	Record    *screen.Message[*nodev1.Record] `json:"record,omitempty"`
	Container *client.InspectedContainer      `json:"container,omitempty"`
	Task      *client.InspectedTask           `json:"task,omitempty"`
	Unread    []string                        `json:"unread,omitempty"`
}

func inspected(i *client.Inspection) inspectionDocument {
	d := inspectionDocument{Namespace: i.Namespace, ID: i.ID, Container: i.Container, Task: i.Task, Unread: i.Unread}
	if i.VM != nil {
		d.VM = &screen.Message[*nodev1.VMInfo]{M: i.VM}
	}
	if i.Record != nil {
		d.Record = &screen.Message[*nodev1.Record]{M: i.Record}
	}
	return d
}

func newInspect(opts *options) *cobra.Command {
	format := ""
	cmd := &cobra.Command{
		Use:   "inspect VM [VM...]",
		Short: "Show all that this node knows of a VM, as JSON",
		Long: "Show one document of each VM, in a list: what godwitd knows, its record, and the container and the task of\n" +
			"containerd. What could not be read is named under unread.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c := opts.client()
			defer c.Close()
			all := []inspectionDocument{}
			for _, arg := range args {
				vm, err := c.Resolve(cmd.Context(), arg)
				if err != nil {
					return err
				}
				i, err := c.Inspect(cmd.Context(), vm)
				if err != nil {
					return err
				}
				all = append(all, inspected(i))
			}
			if format != "" {
				return formatted(cmd.OutOrStdout(), format, all)
			}
			as := opts.format()
			if !as.Machine() { // it is a document in any case
				as = screen.JSON
			}
			return screen.Document(cmd.OutOrStdout(), as, all)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "",
		"Go template for each VM, with the keys of the document, such as '{{.task.status}}'")
	return cmd
}

// formatted writes a line for each VM, as a Go template says.
func formatted(w io.Writer, format string, all []inspectionDocument) error {
	t, err := screen.ParseTemplate(format)
	if err != nil {
		return err
	}
	for _, i := range all {
		if err := t.Write(w, screen.Item{Value: i}); err != nil {
			return err
		}
	}
	return nil
}
