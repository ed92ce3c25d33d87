// Package nodesetup makes a host a node of godwit, from a container that has the host's root mounted. It writes the
// node's configuration, has containerd know the runtime handler, and gets the node's certificate. It may be run again
// at any time: it changes only what is not so yet.
package nodesetup

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// Handler is what RuntimeClass godwit names.
	Handler = "godwit"
	// Label of a node whose containerd has the handler: the RuntimeClass selects it.
	Label = "godwit.dev/runtime"
	// handlerBound is how long a kubelet may take to tell that its containerd has the handler.
	handlerBound = 3 * time.Minute
	handlerPause = time.Second
)

// Setup of a host.
type Setup struct {
	API      *rest.Config
	Root     string // of the host, as it is mounted
	Node     string // as Kubernetes calls it
	Address  string // of the node, where others reach it
	Operator string // namespace of the operator
	Defaults string // directory with the configuration of the cluster's nodes, *.toml
	Restart  string // the host's command that restarts containerd
	Host     Host   // runs it
	Log      *slog.Logger
}

// Host runs a command as the host does.
type Host interface {
	Run(ctx context.Context, command []string) error
}

// Run sets the host up.
func (s Setup) Run(ctx context.Context) error {
	if s.Node == "" || s.Address == "" {
		return fmt.Errorf("set a node up: name it and its address (--node, --address): %w", errdefs.ErrInvalidArgument)
	}
	client, err := kubernetes.NewForConfig(s.API)
	if err != nil {
		return fmt.Errorf("set node %s up: %w", s.Node, err)
	}
	if err := s.fits(ctx, client); err != nil {
		return err
	}
	cfg, err := s.configure()
	if err != nil {
		return fmt.Errorf("configure node %s: %w", s.Node, err)
	}
	keys, err := place(s.Root, cfg.PKIDir())
	if err != nil {
		return fmt.Errorf("set node %s up: %w", s.Node, err)
	}
	c := Certificate{Client: client, Dir: keys, Node: s.Node, Namespace: s.Operator,
		Log: s.Log}
	if _, err := c.Ensure(ctx, time.Now()); err != nil {
		if !errdefs.IsPermissionDenied(err) || !c.valid(time.Now()) {
			return err
		}
		s.Log.WarnContext(ctx, "the next certificate of this node is refused: it goes on with the one that it has",
			"error", err)
	}
	if err := imported(s.Root); err != nil {
		return fmt.Errorf("configure containerd of node %s: %w", s.Node, err)
	}
	if err := s.restart(ctx, client, cfg.RunDir); err != nil {
		return err
	}
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, Label)
	if _, err := client.CoreV1().Nodes().Patch(ctx, s.Node, types.StrategicMergePatchType, label,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", s.Node, err)
	}
	return nil
}
