package nodesetup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"godwit.dev/godwit/internal/retry"
)

const (
	// handlerConfig has the runtime handler.
	handlerConfig = "/etc/containerd/conf.d/godwit.toml"
	// restarted is the file below run_dir with the hash of the configuration that containerd was restarted for. A host
	// that starts again has none, and its containerd has read the configuration.
	restarted = "containerd-restarted"
)

// Oldest release of containerd that has all that godwit needs.
const (
	oldestMajor = 2
	oldestMinor = 3
)

var runtimeVersion = regexp.MustCompile(`^containerd://v?(\d+)\.(\d+)\.`)

// fitting refuses a node whose runtime is known not to do. A version that has no number is tried.
func fitting(node, version string) error {
	scheme, _, found := strings.Cut(version, "://")
	if found && scheme != "containerd" {
		return fmt.Errorf("the container runtime of node %s is %s, and godwit needs containerd %d.%d or newer. Leave the "+
			"node out by the nodeSelector of DaemonSet godwit-node: %w", node, version, oldestMajor, oldestMinor,
			errdefs.ErrFailedPrecondition)
	}
	m := runtimeVersion.FindStringSubmatch(version)
	if m == nil {
		return nil
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	if err1 == nil && err2 == nil && (major < oldestMajor || major == oldestMajor && minor < oldestMinor) {
		return fmt.Errorf("node %s has %s, and godwit needs containerd %d.%d or newer. Upgrade it, or leave the node out "+
			"by the nodeSelector of DaemonSet godwit-node: %w", node, version, oldestMajor, oldestMinor,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// restart has containerd read its configuration, unless the kubelet says that it knows the handler. For one
// configuration that is done once: a restart breaks execs, log streams and pulls of all pods of the node.
func (s Setup) restart(ctx context.Context, client kubernetes.Interface, runDir string) error {
	has, err := s.has(ctx, client)
	if err != nil {
		return err
	}
	stamp, sum, err := s.stamp(runDir)
	if err != nil {
		return err
	}
	if has { // should it go once more, that is a reason for a restart again
		if err := os.Remove(stamp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("node %s: %w", s.Node, err)
		}
		return nil
	}
	switch old, err := os.ReadFile(stamp); {
	case err == nil && bytes.Equal(old, sum):
		s.Log.InfoContext(ctx, "containerd was restarted with this configuration before: it is not restarted again")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("whether containerd of node %s was restarted: %w", s.Node, err)
	default:
		s.Log.InfoContext(ctx, "containerd does not have the runtime handler: it is restarted", "command", s.Restart)
		if err := s.Host.Run(ctx, strings.Fields(s.Restart)); err != nil {
			return fmt.Errorf("restart containerd of node %s: %w", s.Node, err)
		}
		if err := replace(stamp, sum); err != nil {
			return fmt.Errorf("note the restart of containerd of node %s: %w", s.Node, err)
		}
	}
	return s.awaitHandler(ctx, client)
}

// stamp is the file that notes a restart, and what it says of containerd's configuration as it is now.
func (s Setup) stamp(runDir string) (file string, sum []byte, err error) {
	all := sha256.New()
	for _, name := range []string{containerdConfig, handlerConfig} {
		from, err := place(s.Root, name)
		if err != nil {
			return "", nil, err
		}
		text, err := os.ReadFile(from)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("read the configuration of containerd of node %s: %w", s.Node, err)
		}
		fmt.Fprintf(all, "%v %d\n%s", err == nil, len(text), text)
	}
	dir, err := place(s.Root, runDir)
	return filepath.Join(dir, restarted), fmt.Appendf(nil, "%x\n", all.Sum(nil)), err
}

// awaitHandler waits until the kubelet says that its containerd has the handler.
func (s Setup) awaitHandler(ctx context.Context, client kubernetes.Interface) error {
	var has bool
	var err error
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
		"containerd reads %s, and that imports /etc/containerd/conf.d/*.toml. It is not restarted again for this "+
		"configuration. To do so, on the node: %s: %w", s.Node, Handler, containerdConfig, s.Restart, err)
}

func (s Setup) node(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	node, err := client.CoreV1().Nodes().Get(ctx, s.Node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", s.Node, err)
	}
	return node, nil
}

func (s Setup) has(ctx context.Context, client kubernetes.Interface) (bool, error) {
	node, err := s.node(ctx, client)
	return err == nil && hasHandler(node), err
}

func hasHandler(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool {
		return h.Name == Handler
	})
}

// fits refuses a node without the handler whose containerd cannot get it.
func (s Setup) fits(ctx context.Context, client kubernetes.Interface) error {
	node, err := s.node(ctx, client)
	if err != nil || hasHandler(node) {
		return err
	}
	return fitting(s.Node, node.Status.NodeInfo.ContainerRuntimeVersion)
}
