// Package pki makes and loads the certificates by which nodes know each other: one CA
// for a cluster, made on its first node, and one certificate for each node, which names
// it. godwitd and godwit node call it.
package pki

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"

	"github.com/containerd/errdefs"
)

// URIs in a certificate. The first names the node, the second marks the node that may
// serve the records, so that no other can pose as the controller.
const (
	scheme         = "godwit"
	nodeHost       = "node"
	controllerHost = "controller"
)

var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$`)

// checkNode refuses what cannot be the name of a node.
func checkNode(node string) error {
	if !nodeName.MatchString(node) {
		return fmt.Errorf("node name %q: must match %s: %w", node, nodeName, errdefs.ErrInvalidArgument)
	}
	return nil
}

func uri(host, node string) *url.URL {
	return &url.URL{Scheme: scheme, Host: host, Path: "/" + node}
}

// NodeOf answers the node that a certificate names.
func NodeOf(cert *x509.Certificate) (string, error) {
	node, err := named(cert, nodeHost)
	if err != nil {
		return "", fmt.Errorf("the certificate of %q names no node: issue one with the URI %s://%s/NAME as a subject "+
			"alternative name for tls.cert: %w", cert.Subject.CommonName, scheme, nodeHost, err)
	}
	return node, nil
}

// IsController reports whether a certificate carries the controller's role.
func IsController(cert *x509.Certificate) bool {
	_, err := named(cert, controllerHost)
	return err == nil
}

func named(cert *x509.Certificate, host string) (string, error) {
	for _, u := range cert.URIs {
		if u.Scheme == scheme && u.Host == host && len(u.Path) > 1 {
			return u.Path[1:], checkNode(u.Path[1:])
		}
	}
	return "", errdefs.ErrUnauthenticated
}
