// Package plugin is `kubectl godwit`: the verbs of the CLI, for VMs that are objects of Kubernetes. It changes objects
// alone, and the operator does the rest: who uses it needs the rights for these objects, and no way to a node.
package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// waitFor is how long a verb waits, if it is not told.
const waitFor = 10 * time.Minute

// options are those of all verbs.
type options struct {
	kubeconfig, context, namespace string
	detach                         bool
	timeout                        time.Duration
}

// Command answers the whole command.
func Command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use: name(), Short: "Let VMs of Kubernetes sleep, wake and move", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "way to the API server (default: as kubectl)")
	flags.StringVar(&o.context, "context", "", "context of the kubeconfig (default: its current one)")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the VM (default: as kubectl)")
	root.AddCommand(o.ps(), o.operations(), o.abort())
	for _, verb := range []*cobra.Command{o.hibernate(), o.wake(), o.start(), o.stop(), o.migrate(), o.checkpoint()} {
		verb.Flags().BoolVar(&o.detach, "detach", false, "return once the order is written")
		verb.Flags().DurationVar(&o.timeout, "timeout", waitFor, "how long to wait until it is done")
		root.AddCommand(verb)
	}
	return root
}

// name is how the command was called: kubectl runs plugins by the names of their files.
func name() string {
	if base := filepath.Base(os.Args[0]); strings.HasPrefix(base, "kubectl-") {
		return "kubectl " + strings.TrimPrefix(base, "kubectl-")
	}
	return "kubectl godwit"
}

// vms are the VMs of a namespace.
type vms struct {
	client.Client
	namespace string
}

// open finds the API server as kubectl does.
func (o *options) open() (vms, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{
		CurrentContext: o.context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return vms{}, fmt.Errorf("way to the API server: %w. To name it: --kubeconfig FILE", err)
	}
	namespace := o.namespace
	if namespace == "" {
		if namespace, _, err = loaded.Namespace(); err != nil {
			return vms{}, fmt.Errorf("namespace: %w. To name it: --namespace NAME", err)
		}
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return vms{}, fmt.Errorf("make scheme: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return vms{}, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	// A write with a field that the API server's schema lacks is refused. By default it would be dropped, unsaid.
	return vms{Client: client.WithFieldValidation(c, metav1.FieldValidationStrict), namespace: namespace}, nil
}

// one is the argument of a verb for one VM.
func one(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes the name of one VirtualMachine: %s: %w", cmd.Name(), cmd.UseLine(),
			errdefs.ErrInvalidArgument)
	}
	return nil
}
