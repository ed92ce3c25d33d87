package authority

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// Signer is that of the certificates by which nodes know each other.
	Signer = "godwit.dev/node"
	// Account is what the agents of nodes are for the API server.
	Account = "godwit-node"
	// nodeClaim is the node of a token that is bound to a pod. The API server says so, and not who asks.
	nodeClaim = "authentication.kubernetes.io/node-name"
	// machineClaim is the uid of its Node object.
	machineClaim = "authentication.kubernetes.io/node-uid"
	// LabelReplaces of a Node is the uid of the Node that had its name before: who sets it vouches that this machine runs
	// nothing any more. No kubelet may set it.
	LabelReplaces = "godwit.node-restriction.kubernetes.io/replaces"
)

// Usages are those of a node's certificate: nodes serve, and ask.
var Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth,
	certificates.UsageClientAuth}

// verdict on a request: a node's name, a reason to deny, or neither: it is for somebody else.
type verdict struct {
	node, denied string
	machine      string // uid of the Node object of the token; empty: the API server does not say it
}

// judge decides from who asks, as the API server knows it, and from what the request says.
func judge(csr *certificates.CertificateSigningRequest, namespace, self string) verdict {
	spec := csr.Spec
	if spec.SignerName != Signer || decided(csr) {
		return verdict{}
	}
	if account := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, Account); spec.Username != account {
		return verdict{denied: fmt.Sprintf("%q asks, and not %s", spec.Username, account)}
	}
	claim := spec.Extra[nodeClaim]
	if len(claim) != 1 {
		return verdict{denied: "the token that asks is not bound to a pod of a node"}
	}
	node, denied := claim[0], ""
	switch req, err := parse(spec.Request); {
	case err != nil:
		denied = err.Error()
	case req.Subject.CommonName != node:
		denied = fmt.Sprintf("the request names node %q, and its token is of node %q", req.Subject.CommonName, node)
	case node == self:
		denied = fmt.Sprintf("a node must not be called as the controller is: %q", node)
	case len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs) > 0:
		denied = "the request names addresses: nodes are known by their names alone"
	case slices.ContainsFunc(spec.Usages, func(u certificates.KeyUsage) bool { return !slices.Contains(Usages, u) }):
		denied = fmt.Sprintf("the usages %v are more than %v", spec.Usages, Usages)
	}
	if denied != "" {
		return verdict{denied: denied}
	}
	v := verdict{node: node}
	if machine := spec.Extra[machineClaim]; len(machine) == 1 {
		v.machine = machine[0]
	}
	return v
}

// decided requests are left alone. One that was approved and has no certificate yet is not: its signer may have died.
func decided(csr *certificates.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || Refusal(csr) != nil
}

// Refusal says why a request will have no certificate: it was denied, or has failed. nil: it may have one.
func Refusal(csr *certificates.CertificateSigningRequest) *certificates.CertificateSigningRequestCondition {
	for i, c := range csr.Status.Conditions {
		if c.Type != certificates.CertificateApproved && c.Status == corev1.ConditionTrue {
			return &csr.Status.Conditions[i]
		}
	}
	return nil
}

func approved(csr *certificates.CertificateSigningRequest) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificates.CertificateSigningRequestCondition) bool {
		return c.Type == certificates.CertificateApproved && c.Status == corev1.ConditionTrue
	})
}

func parse(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("the request is no certificate request in PEM")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	return req, nil
}
