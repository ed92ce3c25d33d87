// Package controlplane runs the API server of Kubernetes and its etcd: keys, tokens, kubeconfigs and arguments, for
// a cluster on its own network and, as Local, for tests that need no node.
package controlplane

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const keyBits = 2048

// Server is an API server with its etcd: where they serve, and where their files are.
type Server struct {
	Dir      string // keys, tokens, kubeconfigs and what etcd keeps
	Address  string // host and port of the API server
	Etcd     string // URL for clients
	EtcdPeer string // URL for other members
}

// User may use the API server, by a token.
type User struct{ File, Name, Groups string }

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://%s", certificate-authority: %s}
users:
- name: test
  user: {token: %s}
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`

// Path of a file of the server.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, name) }

// Config is the kubeconfig of a user, by its file.
func (s *Server) Config(file string) string { return s.Path(file + ".kubeconfig") }

// WriteConfig writes the kubeconfig of a user that has a token.
func (s *Server) WriteConfig(file, token string) error {
	return os.WriteFile(s.Config(file), fmt.Appendf(nil, kubeconfig, s.Address, s.CA(), token), 0o600)
}

// CA is the certificate that the API server makes for itself, and so the one that clients trust.
func (s *Server) CA() string { return s.Path("certs/apiserver.crt") }

// WriteKeys writes the key of service accounts, the tokens and the kubeconfigs. It answers the tokens, by file.
func (s *Server) WriteKeys(users []User) (map[string]string, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, fmt.Errorf("make the key of service accounts: %w", err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	var list strings.Builder
	files, tokens := map[string][]byte{s.Path("sa.key"): block}, map[string]string{}
	for i, u := range users {
		token := rand.Text()
		tokens[u.File] = token
		fmt.Fprintf(&list, "%s,%s,%d,%q\n", token, u.Name, i, u.Groups)
		files[s.Config(u.File)] = fmt.Appendf(nil, kubeconfig, s.Address, s.CA(), token)
	}
	files[s.Path("tokens.csv")] = []byte(list.String())
	for path, data := range files {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// EtcdArgs are the arguments of etcd.
func (s *Server) EtcdArgs() []string {
	return []string{"--data-dir", s.Path("etcd"), "--listen-client-urls", s.Etcd, "--advertise-client-urls", s.Etcd,
		"--listen-peer-urls", s.EtcdPeer, "--initial-advertise-peer-urls", s.EtcdPeer,
		"--initial-cluster", "default=" + s.EtcdPeer, "--unsafe-no-fsync"}
}

// APIArgs are the arguments of the API server that each of them has.
func (s *Server) APIArgs(more ...string) ([]string, error) {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, fmt.Errorf("split the address of the API server: %w", err)
	}
	key := s.Path("sa.key")
	return append([]string{"--etcd-servers=" + s.Etcd, "--advertise-address=" + host, "--secure-port=" + port,
		"--cert-dir=" + s.Path("certs"), "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file=" + s.Path("tokens.csv"),
		"--allow-privileged=true"}, more...), nil
}
