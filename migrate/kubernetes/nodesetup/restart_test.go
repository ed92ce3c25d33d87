package nodesetup

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// kubelet is an API server with the node of a kubelet, which says what its containerd is.
type kubelet struct {
	version string
	handler bool
}

func (k *kubelet) RoundTrip(*http.Request) (*http.Response, error) {
	node := &corev1.Node{}
	node.APIVersion, node.Kind = "v1", "Node"
	node.Status.NodeInfo.ContainerRuntimeVersion = k.version
	if k.handler {
		node.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: Handler}}
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(node)
	return w.Result(), nil
}

// restarts counts the commands of the host, and may carry them out.
type restarts struct {
	count int
	does  func() error
}

func (r *restarts) Run(context.Context, []string) error {
	r.count++
	if r.does != nil {
		return r.does()
	}
	return nil
}

// at is the set-up of a node whose containerd has a configuration.
func at(t *testing.T, host Host) Setup {
	t.Helper()
	root := t.TempDir()
	for file, text := range map[string]string{containerdConfig: "version = 3\n", handlerConfig: "[plugins]\n"} {
		if err := replace(filepath.Join(root, file), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return Setup{Root: root, Node: "a", Restart: "systemctl restart containerd", Host: host,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// tries has the node restarted in a bubble, where time passes at once.
func tries(t *testing.T, s Setup, k *kubelet) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, made := kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: k})
		if made != nil {
			t.Fatal(made)
		}
		err = s.restart(t.Context(), client, "/run/godwit")
	})
	return err
}

// A containerd whose kubelet never names the handler is restarted once: the kubelet begins the set-up again and again,
// and each restart breaks execs and pulls of all pods. Another configuration is a reason for another restart.
func TestRestartsOnce(t *testing.T) {
	host := &restarts{}
	s, k := at(t, host), &kubelet{version: "containerd://2.3.7"}
	for range 3 {
		if err := tries(t, s, k); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), s.Restart) {
			t.Errorf("%v", err)
		}
	}
	if host.count != 1 {
		t.Errorf("containerd was restarted %d times, want 1", host.count)
	}
	if err := replace(filepath.Join(s.Root, containerdConfig), []byte("version = 3\n# mended\n")); err != nil {
		t.Fatal(err)
	}
	host.does = func() error { k.handler = true; return nil }
	if err := tries(t, s, k); err != nil || host.count != 2 {
		t.Errorf("after another configuration: %d restarts: %v", host.count, err)
	}
	if err := tries(t, s, k); err != nil || host.count != 2 {
		t.Errorf("with the handler: %d restarts: %v", host.count, err)
	}
	k.handler = false
	if err := tries(t, s, k); err != nil || host.count != 3 {
		t.Errorf("after the handler had gone: %d restarts: %v", host.count, err)
	}
}

// A restart that failed is tried again: what containerd has read is not known.
func TestRestartFails(t *testing.T) {
	host := &restarts{does: func() error { return errors.New("no bus") }}
	s := at(t, host)
	for range 2 {
		err := tries(t, s, &kubelet{version: "containerd://2.3.7"})
		if err == nil || !strings.Contains(err.Error(), "no bus") {
			t.Errorf("%v", err)
		}
	}
	if host.count != 2 {
		t.Errorf("%d restarts, want 2", host.count)
	}
}

// A node whose runtime cannot have the handler is refused before anything of it is written, and is not restarted. A
// version that says nothing, such as a commit, is tried.
func TestRuntimeVersion(t *testing.T) {
	for version, fits := range map[string]bool{
		"containerd://2.3.0": true, "containerd://v2.10.1-k3s1": true, "containerd://3.0.0-rc.1": true,
		"containerd://301026e5.m": true, "": true,
		"containerd://2.2.9": false, "containerd://1.7.28": false, "cri-o://1.35.0": false, "docker://29.0.0": false,
	} {
		if err := fitting("a", version); (err == nil) != fits || err != nil && (!errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), version)) {
			t.Errorf("%q: %v", version, err)
		}
	}
	host := &restarts{}
	root := t.TempDir()
	s := Setup{API: &rest.Config{Host: "http://api", Transport: &kubelet{version: "containerd://1.7.28"}}, Root: root,
		Node: "a", Address: "10.0.0.7", Defaults: t.TempDir(), Host: host,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Run(ctx); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "1.7.28") {
		t.Errorf("%v", err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 0 || host.count != 0 {
		t.Errorf("%v is written, and containerd was restarted %d times: %v", left, host.count, err)
	}
}
