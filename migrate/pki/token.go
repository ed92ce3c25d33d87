package pki

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
)

// tokenPrefix starts every join token; the number is of the format.
const tokenPrefix = "godwit1."

// token lets one node join, once. The fingerprint tells the node which CA to trust. The MAC
// tells the CA that it made the token itself. A program that holds the token can be that node.
type token struct {
	Node        string `json:"n"`
	Controller  bool   `json:"c,omitempty"` // the certificate carries the role
	Renew       bool   `json:"r,omitempty"` // the name may be known: its machine gets a new certificate
	Fingerprint []byte `json:"f"`           // SHA-256 of the CA's certificate
	ID          string `json:"i"`
	Expires     int64  `json:"e"` // Unix seconds
	MAC         []byte `json:"m"`
}

// Token makes a join token for the node of that name, which may be a controller too.
func (a *Authority) Token(node string, valid time.Duration, controller bool) (string, error) {
	return a.token(token{Node: node, Controller: controller}, valid)
}

// Renewal is Token for a node that has joined before, and gets a new certificate.
func (a *Authority) Renewal(node string, valid time.Duration, controller bool) (string, error) {
	return a.token(token{Node: node, Controller: controller, Renew: true}, valid)
}

func (a *Authority) token(t token, valid time.Duration) (string, error) {
	node := t.Node
	if err := checkNode(node); err != nil {
		return "", err
	}
	t.Fingerprint, t.ID, t.Expires = fingerprint(a.cert), rand.Text(), time.Now().Add(valid).Unix()
	mac, err := a.mac(t)
	if err != nil {
		return "", err
	}
	t.MAC = mac
	data, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode token for node %s: %w", node, err)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(data), nil
}

func parseToken(text string) (token, error) {
	var t token
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(text), tokenPrefix))
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil || !strings.HasPrefix(strings.TrimSpace(text), tokenPrefix) || len(t.Fingerprint) != sha256.Size {
		return token{}, fmt.Errorf("join token is not one of godwit node token: %w", errdefs.ErrInvalidArgument)
	}
	return t, nil
}

// mac is keyed by the CA's key: the authority remembers no token that it has made.
func (a *Authority) mac(t token) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("derive token key: %w", err)
	}
	key := hmac.New(sha256.New, der)
	key.Write([]byte("godwit join token v1"))
	t.MAC = nil
	data, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode token: %w", err)
	}
	mac := hmac.New(sha256.New, key.Sum(nil))
	mac.Write(data)
	return mac.Sum(nil), nil
}

// check refuses a token that is foreign, altered or too old.
func (a *Authority) check(t token, now time.Time) error {
	mac, err := a.mac(t)
	if err != nil {
		return err
	}
	if !hmac.Equal(mac, t.MAC) {
		return fmt.Errorf("join token of node %q was not made by this cluster: %w", t.Node, errdefs.ErrUnauthenticated)
	}
	if now.Unix() > t.Expires {
		return fmt.Errorf("join token of node %s has expired at %s; make a new one: %w", t.Node,
			time.Unix(t.Expires, 0).UTC().Format(time.RFC3339), errdefs.ErrUnauthenticated)
	}
	return nil
}

// spend uses a token up, durably, before the certificate is given out.
func (a *Authority) spend(t token) error {
	dir := filepath.Join(a.dir, dirUsed)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, t.ID), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("join token of node %s is used up; make a new one: %w", t.Node, errdefs.ErrUnauthenticated)
	}
	if err != nil {
		return fmt.Errorf("mark join token of node %s as used: %w", t.Node, err)
	}
	return errors.Join(f.Sync(), f.Close(), durable.SyncDir(dir))
}

func fingerprint(cert *x509.Certificate) []byte {
	sum := sha256.Sum256(cert.Raw)
	return sum[:]
}
