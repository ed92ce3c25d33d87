package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client/dashboard"
)

// dashboardDocument is what dashboard prints before it serves.
type dashboardDocument struct {
	URL string `json:"url"`
}

func newDashboard(opts *options) *cobra.Command {
	var address string
	var remote bool
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Show nodes, VMs and what is under way in a browser",
		Long: "Serve the web page of this node's godwitd to a browser of this host, until Ctrl-C.\n" +
			"The URL that it prints works once. The page only reads.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := opts.daemon()
			if err != nil {
				return err
			}
			l, err := dashboard.Listen(cmd.Context(), address, remote)
			if err != nil {
				return err
			}
			defer l.Close()
			pages := filepath.Join(filepath.Dir(socket), config.DashboardName)
			if err := opts.served(cmd.Context(), pages); err != nil {
				return err
			}
			proxy, url := dashboard.New(pages, l.Addr())
			r := screen.Result{Value: dashboardDocument{url}, Names: []string{url}, Text: said("%s", url)}
			if err := opts.print(cmd, r); err != nil {
				return err
			}
			opts.note(cmd, "open this URL in a browser of this host. Ctrl-C ends it.")
			return proxy.Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1:0", "where to serve it; port 0: one that is free")
	cmd.Flags().BoolVar(&remote, "allow-remote", false, "take an address that other hosts reach; nothing is encrypted")
	return cmd
}

// served tells whether godwitd answers, and has a page.
func (o *options) served(ctx context.Context, pages string) error {
	node, conn, err := o.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := node.Info(ctx, &nodev1.InfoRequest{}); err != nil {
		return record.FromWire(err)
	}
	page, err := new(net.Dialer).DialContext(ctx, "unix", pages)
	if err != nil {
		return fmt.Errorf("godwitd serves no dashboard: %v. If it is of an earlier build, start the new one: "+
			"systemctl restart godwitd: %w", err, errdefs.ErrFailedPrecondition)
	}
	return page.Close()
}
