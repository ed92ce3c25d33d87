package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/migrate/pki"
)

func newNodeJoin(opts *options) *cobra.Command {
	var address, file string
	var addresses []string
	cmd := &cobra.Command{
		Use:   "join [TOKEN] --token-file FILE",
		Short: "Get this node's certificate from the controller",
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := opts.joinToken(cmd, args, file)
			if err != nil {
				return err
			}
			cfg, err := config.Load(opts.config)
			if err != nil {
				return err
			}
			if address == "" {
				address, _, _ = strings.Cut(cfg.Controller.Address, ",")
			}
			if address == "" {
				return fmt.Errorf("name the controller in controller.address, or with --controller: %w", errdefs.ErrInvalidArgument)
			}
			node, err := pki.Join(cmd.Context(), cfg.PKIDir(), address, token, addresses)
			if err != nil {
				return err
			}
			if node != cfg.Node {
				return fmt.Errorf("the token is of node %s, this one is %s (node): %w", node, cfg.Node,
					errdefs.ErrFailedPrecondition)
			}
			return opts.print(cmd, screen.Result{Value: nodeDocument{node, cfg.PKIDir()}, Names: []string{node},
				Text: said("node %s has joined; its certificate lies in %s", node, cfg.PKIDir())})
		},
	}
	cmd.Flags().StringVar(&file, "token-file", "", "file with the token, - for standard input")
	cmd.Flags().StringVar(&address, "controller", "", "host:port of the controller (default: controller.address)")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "names or IPs of this node")
	return cmd
}

// joinToken reads the token from where others of this host do not see it. As an argument it
// stands in /proc for all of them: that form ends with the next release.
func (o *options) joinToken(cmd *cobra.Command, args []string, file string) (string, error) {
	switch {
	case len(args) > 0 && file != "":
		return "", misuse(cmd, "TOKEN and --token-file are both there, one is needed")
	case len(args) > 0:
		o.note(cmd, "every user of this host can read a token that is an argument; give it with --token-file FILE, or - "+
			"for standard input. The next release takes it no other way")
		return args[0], nil
	case file == "":
		return "", misuse(cmd, "--token-file is missing")
	}
	token, err := readToken(cmd.InOrStdin(), file)
	if err != nil {
		return "", fmt.Errorf("--token-file %s: %w", file, err)
	}
	return token, nil
}

// maxToken is more than a token has.
const maxToken = 64 << 10

func readToken(stdin io.Reader, file string) (string, error) {
	from := stdin
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
		}
		defer f.Close()
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, maxToken+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > maxToken || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%d bytes are no token: it is the one line that godwit node token prints: %w", len(data),
			errdefs.ErrInvalidArgument)
	}
	return token, nil
}
