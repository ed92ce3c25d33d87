//go:build integration

package authority_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/kubernetes/nodesetup"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/pki"
)

const (
	system     = "godwit-system"
	controller = "godwit-operator"
)

var server *apitest.Server

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, func(s *apitest.Server) {
		server = s
		packaging := filepath.Join("..", "..", "..", "packaging", "kubernetes")
		if _, err := s.Kubectl(context.Background(), "", "apply", "-k", filepath.Join(packaging, "policies")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}))
}

// as is the API server for an account of godwit, by a token that is bound to a pod, if one is named.
func as(t *testing.T, account string, pod *corev1.Pod) *rest.Config {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	req := &authentication.TokenRequest{}
	if pod != nil {
		req.Spec.BoundObjectRef = &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID}
	}
	token, err := client.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, req, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(server.REST())
	config.BearerToken = token.Status.Token
	return config
}

// agent is the pod of the agent of a node, whose kubelet does not say which machine it is.
func agent(t *testing.T, node string) *corev1.Pod { return agentOf(t, node, corev1.NodeSystemInfo{}) }

// agentOf makes a Node as its kubelet does, and the pod of its agent.
func agentOf(t *testing.T, node string, machine corev1.NodeSystemInfo) *corev1.Pod {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: corev1.NodeStatus{NodeInfo: machine}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := client.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "agent-" + node}, Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: authority.Account,
		Containers: []corev1.Container{{Name: "agent", Image: "localhost/agent"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func certificate(t *testing.T, api *rest.Config, node string) nodesetup.Certificate {
	t.Helper()
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	return nodesetup.Certificate{Client: client, Dir: filepath.Join(t.TempDir(), "pki"), Node: node, Namespace: system,
		Log: slog.Default()}
}

// operate runs an operator with that CA, until it is called off.
func operate(t *testing.T, api *rest.Config, ca *pki.Authority) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- operator.Run(ctx, operator.Options{Config: api, Namespace: system, Log: slog.Default(),
			Manager: func(mgr manager.Manager) error { return authority.Join(mgr, ca, system, controller) }})
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestNodeCertificate: with the token of its agent, a node gets its certificate, and that of no other node. The CA is
// the same when an operator starts again. The certificate is renewed after two thirds of its time.
func TestNodeCertificate(t *testing.T) {
	api := as(t, controller, nil)
	var first *pki.Authority
	for range 2 {
		ca, err := authority.Open(t.Context(), api, system)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = ca
		}
		one, _, err := first.PEM()
		two, _, terr := ca.PEM()
		if string(one) != string(two) {
			t.Errorf("an operator that starts again has another CA: %v", errors.Join(err, terr))
		}
	}
	t.Cleanup(operate(t, api, first))
	a := as(t, authority.Account, agent(t, "a"))
	own := certificate(t, a, "a")
	if got, err := own.Ensure(t.Context(), time.Now()); err != nil || !got {
		t.Fatalf("node a: %v %v", got, err)
	}
	id, err := pki.LoadOf("a", pki.In(own.Dir))
	if err != nil {
		t.Fatal(err)
	}
	if end, _ := id.Expires(); time.Until(end) > authority.Valid || time.Until(end) < authority.Valid/2 {
		t.Errorf("the certificate ends at %s", end)
	}
	for after, want := range map[time.Duration]bool{authority.Valid / 2: false, authority.Valid * 3 / 4: true} {
		if got, err := own.Ensure(t.Context(), time.Now().Add(after)); err != nil || got != want {
			t.Errorf("after %s: asked for the next one: %v, want %v: %v", after, got, want, err)
		}
	}
	for name, c := range map[string]struct {
		api     *rest.Config
		because string
	}{
		"the token of another node": {a, `names node "b"`},
		"a token of no pod":         {as(t, authority.Account, nil), "not bound to a pod"},
	} {
		other := certificate(t, c.api, "b")
		_, err := other.Ensure(t.Context(), time.Now())
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.because) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := pki.Load(pki.In(other.Dir)); !errdefs.IsNotFound(err) {
			t.Errorf("%s: there is a certificate: %v", name, err)
		}
	}
}
