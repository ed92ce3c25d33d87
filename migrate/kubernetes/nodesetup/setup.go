// Package nodesetup makes a host a node of godwit, from a container that has the host's root mounted. It writes the
// node's configuration, has containerd know the runtime handler, and gets the node's certificate. It may be run again
// at any time: it changes only what is not so yet.
package nodesetup

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/internal/retry"
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
	cfg, err := s.configure()
	if err != nil {
		return fmt.Errorf("configure node %s: %w", s.Node, err)
	}
	c := Certificate{Client: client, Dir: filepath.Join(s.Root, cfg.PKIDir()), Node: s.Node, Namespace: s.Operator,
		Log: s.Log}
	if _, err := c.Ensure(ctx, time.Now()); err != nil {
		if !errdefs.IsPermissionDenied(err) || !c.valid(time.Now()) {
			return err
		}
		s.Log.WarnContext(ctx, "the next certificate of this node is refused: it goes on with the one that it has",
			"error", err)
	}
	if err := imported(filepath.Join(s.Root, containerdConfig)); err != nil {
		return fmt.Errorf("configure containerd of node %s: %w", s.Node, err)
	}
	if err := s.restart(ctx, client); err != nil {
		return err
	}
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, Label)
	if _, err := client.CoreV1().Nodes().Patch(ctx, s.Node, types.StrategicMergePatchType, label,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", s.Node, err)
	}
	return nil
}

// restart has containerd read its configuration, unless the kubelet says that it knows the handler.
func (s Setup) restart(ctx context.Context, client kubernetes.Interface) error {
	has, err := s.has(ctx, client)
	if err != nil || has {
		return err
	}
	s.Log.InfoContext(ctx, "containerd does not have the runtime handler: it is restarted", "command", s.Restart)
	if err := s.Host.Run(ctx, strings.Fields(s.Restart)); err != nil {
		return fmt.Errorf("restart containerd of node %s: %w", s.Node, err)
	}
	for end := time.Now().Add(handlerBound); time.Now().Before(end); {
		if has, err = s.has(ctx, client); err == nil && has {
			return nil
		}
		if retry.Sleep(ctx, handlerPause); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err == nil {
		err = errdefs.ErrUnavailable
	}
	return fmt.Errorf("containerd of node %s was restarted, and the kubelet names no runtime handler %q: see whether "+
		"containerd's config.toml imports /etc/containerd/conf.d/*.toml: %w", s.Node, Handler, err)
}

func (s Setup) has(ctx context.Context, client kubernetes.Interface) (bool, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, s.Node, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", s.Node, err)
	}
	return slices.ContainsFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool {
		return h.Name == Handler
	}), nil
}
