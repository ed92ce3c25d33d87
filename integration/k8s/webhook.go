package k8s

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

const (
	// webhookPort is where the operator answers the API server before it evicts a pod.
	webhookPort = "9443"
	// webhookToken is in the path that the API server calls.
	webhookToken = "0123456789abcdef"
)

// webhookAt is its host and port.
func (c *Cluster) webhookAt() string { return net.JoinHostPort(c.Node(0).Address, webhookPort) }

// writeWebhook makes the webhook's certificate, and has the API server ask there.
func (c *Cluster) writeWebhook(ctx context.Context, root string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	self := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.ParseIP(c.Node(0).Address)}, IsCA: true,
		BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.MkdirAll(c.path("webhook"), 0o700); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"tls.crt": cert, "token": []byte(webhookToken),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(c.path("webhook"), name), data, 0o600); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "packaging", "kubernetes", "webhook", "webhook.yaml"))
	if err != nil {
		return err
	}
	return c.Apply(ctx, strings.NewReplacer("https://OPERATOR/", "https://"+c.webhookAt()+"/", "TOKEN", webhookToken,
		"caBundle: CA", "caBundle: "+base64.StdEncoding.EncodeToString(cert)).Replace(string(text)))
}

// Drain is kubectl drain of a node.
func (c *Cluster) Drain(ctx context.Context, n *harness.Node) (string, error) {
	return c.Kubectl(ctx, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout="+readyTime.String())
}
