package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const namespace = "godwit-system"

// asked is a request as a node makes it.
func asked(t *testing.T, change func(*x509.CertificateRequest)) *certificates.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}
	change(template)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: Signer, Usages: Usages, Username: "system:serviceaccount:godwit-system:godwit-node",
		Extra: map[string]certificates.ExtraValue{nodeClaim: {"a"}, machineClaim: {"u"}},
	}}
}

// A request is signed for the node of its token, and for no other.
func TestJudge(t *testing.T) {
	type request = *certificates.CertificateSigningRequest
	for name, c := range map[string]struct {
		change  func(*x509.CertificateRequest)
		spec    func(request)
		node    string
		because string
	}{
		"a node": {node: "a"},
		"another node": {change: func(r *x509.CertificateRequest) { r.Subject.CommonName = "b" },
			because: `names node "b"`},
		"no node":         {spec: func(r request) { r.Spec.Extra = nil }, because: "not bound to a pod of a node"},
		"two nodes":       {spec: func(r request) { r.Spec.Extra[nodeClaim] = []string{"a", "b"} }, because: "not bound"},
		"another account": {spec: func(r request) { r.Spec.Username = "system:node:a" }, because: `"system:node:a" asks`},
		"an account of another namespace": {spec: func(r request) {
			r.Spec.Username = "system:serviceaccount:team:godwit-node"
		}, because: "asks"},
		"addresses": {change: func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4zero} },
			because: "addresses"},
		"a usage": {spec: func(r request) { r.Spec.Usages = []certificates.KeyUsage{certificates.UsageCertSign} },
			because: "usages"},
		"no request":     {spec: func(r request) { r.Spec.Request = []byte("x") }, because: "no certificate request"},
		"another signer": {spec: func(r request) { r.Spec.SignerName = "kubernetes.io/kubelet-serving" }},
		"signed already": {spec: func(r request) { r.Status.Certificate = []byte("x") }},
		"denied already": {spec: func(r request) {
			r.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied,
				Status: corev1.ConditionTrue}}
		}},
		"approved, and its signer died": {spec: func(r request) {
			r.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved,
				Status: corev1.ConditionTrue}}
		}, node: "a"},
		"the controller's name": {change: func(r *x509.CertificateRequest) { r.Subject.CommonName = "self" },
			spec: func(r request) { r.Spec.Extra[nodeClaim] = []string{"self"} }, because: "as the controller is"},
	} {
		if c.change == nil {
			c.change = func(*x509.CertificateRequest) {}
		}
		csr := asked(t, c.change)
		if c.spec != nil {
			c.spec(csr)
		}
		v := judge(csr, namespace, "self")
		if c.node != "" && v.machine != "u" {
			t.Errorf("%s: machine %q", name, v.machine)
		}
		if v.node != c.node || !strings.Contains(v.denied, c.because) || (c.because == "") != (v.denied == "") {
			t.Errorf("%s: node %q, denied because %q, want %q and %q", name, v.node, v.denied, c.node, c.because)
		}
	}
}
