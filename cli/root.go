// Package cli is the command line: one file per verb. A verb reads its flags, asks a daemon or containerd through
// package client, and prints.
package cli

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/containerd/log"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/visible"
)

// options are the flags that every verb has.
type options struct {
	config     string
	socket     string
	containerd string
	namespace  string
	output     string
	// Streams of the process, which bytes of a VM go through as they are: of a command in it, or an archive.
	stdin          io.Reader
	rawOut, rawErr io.Writer
	verbose        bool
	names          client.Names // as VMs were called
}

// verbs make the subcommands.
var verbs = []func(*options) *cobra.Command{
	newRun, newCreate, newStart, newStop, newRestart, newKill, newRename, newPort, newPull, newImages, newHook,
	newCp, newCommit, newDiff, newExec, newAttach, newTop, newLogs, newStats, newInspect,
	newPs, newHibernate, newWake, newCheckpoint, newMigrate, newMigrations, newWatch, newAbort, newRm, newSnapshot,
	newEvents,
	newTemplate, newGolden,
	newDashboard, newNode, newController, newNodes, newCordon, newUncordon, newDrain, newRecover, newDoctor, newVersion,
}

// Run is main without the process: it answers the exit code.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts := &options{stdin: os.Stdin, rawOut: stdout, rawErr: stderr}
	stdout, stderr = visible.Writer(stdout), visible.Writer(stderr) // names, reasons and addresses are foreign text
	root := newRoot(opts)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if cmd.Annotations[dockerCodes] != "" {
		err = notRun(err)
	}
	if err != nil {
		opts.printError(stderr, err)
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
			if !opts.verbose { // what containerd's library tells of its tries is no message of ours
				_ = log.SetLevel("error")
			}
			return opts.format().Check()
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
	flags.StringVar(&opts.containerd, "containerd", "",
		"socket of containerd, which knows the names of this node's VMs (default: as the configuration says)")
	flags.StringVarP(&opts.namespace, "namespace", "n", namespace, "containerd namespace of the VM")
	flags.StringVarP(&opts.output, "output", "o", "text", strings.Join(screen.Formats, ", "))
	root.SetFlagErrorFunc(wrongFlag)
	for _, verb := range verbs {
		root.AddCommand(verb(opts))
	}
	root.InitDefaultCompletionCmd()
	strict(root)
	eachLeaf(root, opts.addVerbose)
	eachLeaf(root, opts.addCompletion)
	return root
}

// guard bounds how long the daemon may be silent under a call. A variable for the tests.
var guard = record.DefaultGuard

// client is that of the node which the flags name; the caller closes it.
func (o *options) client() *client.Client {
	return client.New(client.WithConfig(o.config), client.WithDaemon(o.socket), client.WithContainerd(o.containerd),
		client.WithNamespace(o.namespace), client.WithGuard(guard), client.WithNames(&o.names))
}

// dial connects to the daemon; the caller closes the connection.
func (o *options) dial(ctx context.Context) (nodev1.NodeService, io.Closer, error) {
	c := o.client()
	node, err := c.Node(ctx)
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return node, c, nil
}

// daemon is the socket of godwitd.
func (o *options) daemon() (string, error) {
	c := o.client()
	defer c.Close()
	return c.Daemon()
}

// vm checks how a VM is named, before anybody is asked. resolve finds the VM.
func (o *options) vm(arg string) error {
	_, err := client.ParseVM(arg, o.namespace)
	return err
}

// resolve finds the VM that arg names (client.Resolve).
func (o *options) resolve(ctx context.Context, arg string) (*nodev1.VM, error) {
	c := o.client()
	defer c.Close()
	return c.Resolve(ctx, arg)
}

// resolveDigests replaces each beginning of a digest by the digest; those of vm, or for nil of all VMs.
func (o *options) resolveDigests(ctx context.Context, vm *nodev1.VM, said ...*string) error {
	c := o.client()
	defer c.Close()
	for _, d := range said {
		if *d == "" {
			continue
		}
		whole, err := c.ResolveSnapshot(ctx, *d, vm)
		if err != nil {
			return err
		}
		*d = whole
	}
	return nil
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

// onVM is the body of a verb that takes one VM: do gets the daemon and the VM. A name that
// can be none is refused before the daemon is looked for.
func (o *options) onVM(do func(*cobra.Command, nodev1.NodeService, *nodev1.VM) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := o.vm(args[0]); err != nil {
			return err
		}
		c := o.client()
		defer c.Close()
		vm, err := c.Resolve(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		node, err := c.Node(cmd.Context())
		if err != nil {
			return err
		}
		return do(cmd, node, vm)
	}
}

// group is a command that only holds others.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(verbs...)
	return cmd
}

// eachLeaf calls do for every command that does something.
func eachLeaf(cmd *cobra.Command, do func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		eachLeaf(sub, do)
	}
	if cmd.Runnable() && cmd.HasParent() {
		do(cmd)
	}
}

// addVerbose adds --verbose. Verbs whose -v is something else, as docker's, have the long name alone.
func (o *options) addVerbose(cmd *cobra.Command) {
	short := "v"
	if cmd.Flags().ShorthandLookup(short) != nil {
		short = ""
	}
	cmd.Flags().BoolVarP(&o.verbose, "verbose", short, false, "tell all that is known of an error")
}
