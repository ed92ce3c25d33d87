package cli

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/migrate/pki"
)

func newNode(opts *options) *cobra.Command {
	return group("node", "Make a cluster, and let nodes join it", newNodeInit(opts), newNodeToken(opts), newNodeJoin(opts))
}

// nodeDocument is what init and join print.
type nodeDocument struct {
	Node   string `json:"node"`
	PKIDir string `json:"pkiDir"` // of the CA and the certificate
}

type tokenDocument struct {
	Token string `json:"token"`
}

func newNodeInit(opts *options) *cobra.Command {
	var addresses []string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the cluster's CA and the certificate of this, its first, node",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(opts.config)
			if err != nil {
				return err
			}
			if len(addresses) == 0 {
				addresses = own(cfg)
			}
			if err := pki.Init(cfg.PKIDir(), cfg.Node, addresses); err != nil {
				return err
			}
			return opts.print(cmd, screen.Result{Value: nodeDocument{cfg.Node, cfg.PKIDir()}, Names: []string{cfg.Node},
				Text: func(w io.Writer) error { return introduce(w, cfg, booted) }})
		},
	}
	cmd.Flags().StringSliceVar(&addresses, "address", nil,
		"names or IPs of this node (default: host of controller.listen)")
	return cmd
}

// own is the address that the configuration gives this node, if it gives one.
func own(cfg *config.Config) []string {
	host, _, err := net.SplitHostPort(cfg.Controller.Listen)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		return nil
	}
	return []string{host}
}

func newNodeToken(opts *options) *cobra.Command {
	var valid time.Duration
	var controller, renew bool
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Make a token with which the node of that name may join, once",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(opts.config)
			if err != nil {
				return err
			}
			if valid <= 0 || valid > maxTokenLife {
				return fmt.Errorf("--valid %s: more than 0 and at most %s: %w", valid, maxTokenLife, errdefs.ErrInvalidArgument)
			}
			authority, err := pki.OpenAuthority(cfg.PKIDir())
			if err != nil {
				return err
			}
			make := authority.Token
			if renew {
				make = authority.Renewal
			}
			token, err := make(args[0], valid, controller)
			if err != nil {
				return err
			}
			return opts.print(cmd, screen.Result{Value: tokenDocument{token}, Names: []string{token}, Text: said("%s", token)})
		},
	}
	cmd.Flags().DurationVar(&valid, "valid", tokenLife, "how long the token may be used")
	cmd.Flags().BoolVar(&renew, "renew", false,
		"the name may be known: its machine gets a new certificate, or another machine takes its place")
	cmd.Flags().BoolVar(&controller, "controller", false, "the node may be a controller too (controller.etcd)")
	return cmd
}

// Lives of a join token: a program that holds one can be that node.
const (
	tokenLife    = time.Hour // if nothing else is said
	maxTokenLife = 7 * 24 * time.Hour
)
