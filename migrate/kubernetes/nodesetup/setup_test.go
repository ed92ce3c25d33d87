package nodesetup

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/pki"
)

// refusing is an API server with another CA than the node's, whose operator denies each certificate. It has the label
// that a node gets.
type refusing struct {
	ca      []byte
	broken  bool // it does not take a request
	labeled bool
}

func (r *refusing) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	const csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	var o any
	switch path := req.URL.Path; {
	case strings.HasPrefix(path, csrs) && r.broken:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case strings.HasPrefix(path, csrs):
		csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied,
			Status: corev1.ConditionTrue, Reason: "NodeMadeAgain", Message: "made again"}}
		o = csr
	case strings.HasSuffix(path, "/configmaps/"+authority.PublicName):
		o = &corev1.ConfigMap{Data: map[string]string{"ca.crt": string(r.ca)}}
	case path == "/api/v1/nodes/a":
		r.labeled = r.labeled || req.Method == http.MethodPatch
		o = &corev1.Node{Status: corev1.NodeStatus{RuntimeHandlers: []corev1.NodeRuntimeHandler{{Name: Handler}}}}
	default:
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o)
}

type noHost struct{}

func (noHost) Run(context.Context, []string) error { return errdefs.ErrNotImplemented }

// A node whose next certificate is refused is set up with the one that it has, while that is valid: its VMs run.
// Without a certificate, and with one of another node or whose time is over, it is not. Nor is it where no answer came:
// the next try has one.
func TestRefusedRenewal(t *testing.T) {
	other, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	now, _, err := other.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		node  string // of the certificate; empty: there is none
		valid time.Duration
		goes  bool
		fails bool // there is no answer
	}{
		"a valid one":         {node: "a", valid: time.Hour, goes: true},
		"no answer":           {node: "a", valid: time.Hour, fails: true},
		"none":                {},
		"one of another node": {node: "b", valid: time.Hour},
		"one that has ended":  {node: "a", valid: -time.Second},
	} {
		root := t.TempDir()
		if err := replace(filepath.Join(root, "etc/godwit/config.toml"), nil); err != nil {
			t.Fatal(err)
		}
		if c.node != "" {
			granted(t, filepath.Join(root, "/var/lib/godwit/pki"), c.node, c.valid)
		}
		api := &refusing{ca: now, broken: c.fails}
		server := httptest.NewServer(api)
		err := Setup{API: &rest.Config{Host: server.URL}, Root: root, Node: "a", Address: "10.0.0.7",
			Operator: "godwit-system", Defaults: t.TempDir(),
			Host: noHost{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}.Run(t.Context())
		server.Close()
		if api.labeled != c.goes || c.goes != (err == nil) || errdefs.IsPermissionDenied(err) == (c.goes || c.fails) {
			t.Errorf("%s: the node is set up: %v, want %v: %v", name, api.labeled, c.goes, err)
		}
	}
}

// granted writes the certificate of a node.
func granted(t *testing.T, dir, node string, valid time.Duration) {
	t.Helper()
	ca, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	ca.Valid = valid
	wish, err := pki.NewWish(node)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Sign(wish.Request, node)
	if err == nil {
		err = wish.Grant(dir, chain)
	}
	if err != nil {
		t.Fatal(err)
	}
}
