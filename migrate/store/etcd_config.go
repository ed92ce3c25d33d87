package store

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
)

// EtcdConfig is how an etcd is reached.
type EtcdConfig struct {
	Endpoints []string // URLs
	Prefix    string   // of all keys, such as /godwit/
	TLS       *tls.Config
}

// EtcdOf reads the files that controller.etcd of a configuration names. The files of the client's
// certificate are read again for each connection: they may be renewed.
func EtcdOf(from config.Etcd) (EtcdConfig, error) {
	cfg := EtcdConfig{Endpoints: from.Endpoints, Prefix: from.Prefix, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if from.CA != "" {
		pem, err := os.ReadFile(from.CA)
		if err != nil {
			return cfg, fmt.Errorf("controller.etcd.ca: %w", err)
		}
		cfg.TLS.RootCAs = x509.NewCertPool()
		if !cfg.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return cfg, fmt.Errorf("controller.etcd.ca: %s holds no certificate in PEM: %w", from.CA, errdefs.ErrInvalidArgument)
		}
	}
	if from.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(from.Cert, from.Key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return cfg, fmt.Errorf("controller.etcd.cert: %w", err)
		}
		cfg.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return cfg, nil
}
