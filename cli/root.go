// Package cli is the command line: one file per verb. A verb reads its flags, asks a daemon or containerd through
// package client, and prints.
package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/visible"
)

// options are the flags that every verb has.
type options struct {
	config    string
	socket    string
	namespace string
	output    string
}

// verbs make the subcommands.
var verbs = []func(*options) *cobra.Command{
	newPs, newHibernate, newWake, newCheckpoint, newMigrate, newMigrations, newWatch, newAbort, newRm, newSnapshot,
	newTemplate, newGolden,
	newDashboard, newNode, newController, newNodes, newCordon, newUncordon, newDrain, newRecover, newDoctor, newVersion,
}

// Run is main without the process: it answers the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts := &options{}
	stdout, stderr = visible.Writer(stdout), visible.Writer(stderr) // names, reasons and addresses are foreign text
	root := newRoot(opts)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		printError(stderr, opts.output, err)
	}
	return exitCode(err)
}

func newRoot(opts *options) *cobra.Command {
	root := &cobra.Command{
		Use:           "godwit",
		Short:         "Run VMs under containerd that sleep in a registry and wake on any node",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if opts.output != "text" && opts.output != "json" {
				return fmt.Errorf("--output %q: text or json: %w", opts.output, errdefs.ErrInvalidArgument)
			}
			return nil
		},
	}
	namespace := os.Getenv("CONTAINERD_NAMESPACE")
	if namespace == "" {
		namespace = "default"
	}
	flags := root.PersistentFlags()
	flags.StringVar(&opts.config, "config", "",
		"configuration of the node (default: GODWIT_CONFIG, else /etc/godwit/config.toml)")
	flags.StringVar(&opts.socket, "socket", "", "socket of godwitd (default: as the configuration says)")
	flags.StringVarP(&opts.namespace, "namespace", "n", namespace, "containerd namespace of the VM")
	flags.StringVarP(&opts.output, "output", "o", "text", "text or json")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return misuse(cmd, err.Error()) })
	for _, verb := range verbs {
		root.AddCommand(verb(opts))
	}
	root.InitDefaultCompletionCmd()
	strict(root)
	return root
}

// daemon is the socket of godwitd.
func (o *options) daemon() (string, error) {
	if o.socket != "" {
		return o.socket, nil
	}
	cfg, err := config.Load(o.config)
	if err != nil {
		return "", err
	}
	return cfg.DaemonSocket(), nil
}

// guard bounds how long the daemon may be silent under a call. A variable for the tests.
var guard = record.DefaultGuard

// dial connects to the daemon; the caller closes the connection.
func (o *options) dial(ctx context.Context) (nodev1.NodeService, io.Closer, error) {
	socket, err := o.daemon()
	if err != nil {
		return nil, nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, record.Unreachable(socket, err)
	}
	client := guard.Client(conn, socket)
	node := &daemonNode{NodeService: nodev1.NewNodeClient(client), conn: client, looker: record.Local(socket)}
	return node, node, nil
}

// vm reads NAMESPACE/ID, or ID in the namespace of the flag.
func (o *options) vm(arg string) (*nodev1.VM, error) {
	namespace, id, found := strings.Cut(arg, "/")
	if !found {
		namespace, id = o.namespace, arg
	}
	if namespace == "" || id == "" || strings.Contains(id, "/") {
		return nil, fmt.Errorf("VM %q: write ID, or NAMESPACE/ID: %w", arg, errdefs.ErrInvalidArgument)
	}
	return &nodev1.VM{Namespace: namespace, Id: id}, nil
}

// onNode is the body of a verb that asks the daemon.
func (o *options) onNode(do func(*cobra.Command, nodev1.NodeService, []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		node, conn, err := o.dial(cmd.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(cmd, node, args)
	}
}

// onVM is the body of a verb that takes one VM: do gets the daemon and the VM's name. A
// name that is none is refused before the daemon is looked for.
func (o *options) onVM(do func(*cobra.Command, nodev1.NodeService, *nodev1.VM) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		vm, err := o.vm(args[0])
		if err != nil {
			return err
		}
		return o.onNode(func(cmd *cobra.Command, node nodev1.NodeService, _ []string) error {
			return do(cmd, node, vm)
		})(cmd, args)
	}
}

// group is a command that only holds others.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(verbs...)
	return cmd
}
