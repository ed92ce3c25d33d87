package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
)

// Files in the directory of a node.
const (
	fileCA      = "ca.crt"
	fileCAKey   = "ca.key" // on the first node only
	fileCert    = "node.crt"
	fileKey     = "node.key"
	dirUsed     = "used" // one file for each token that was redeemed
	typeCert    = "CERTIFICATE"
	typeKey     = "PRIVATE KEY"
	typeRequest = "CERTIFICATE REQUEST"
)

// refuse makes sure that none of the files is there: a certificate or key is never
// written over.
func refuse(dir string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		_, err := os.Lstat(path)
		if err == nil {
			return fmt.Errorf("%s is there; remove it first if this node is to get a new one: %w", path,
				errdefs.ErrAlreadyExists)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for %s: %w", path, err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	return nil
}

// write makes path durable in one step: a reader sees all of it or nothing.
func write(path string, mode fs.FileMode, data []byte) error {
	if err := durable.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", path, err)
	}
	return write(path, 0o600, encode(typeKey, der))
}

// decode reads the first PEM block of data, which must be of this kind.
func decode(what, kind string, data []byte) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no PEM block %q: %w", what, kind, errdefs.ErrInvalidArgument)
	}
	return block.Bytes, nil
}

// readCerts reads all certificates of a file; what stands around them is comment.
func readCerts(path string) (certs []*x509.Certificate, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, missing(path, err)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != typeCert {
			return nil, fmt.Errorf("%s holds a PEM block %q, where only %q belongs: %w", path, block.Type, typeCert,
				errdefs.ErrInvalidArgument)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate %d of %s: %w: %w", len(certs)+1, path, errdefs.ErrInvalidArgument, err)
		}
		certs = append(certs, cert)
	}
	// The decoder passes over what it cannot read.
	if n := bytes.Count(data, []byte("-----BEGIN ")); n == 0 || n != len(certs) {
		return nil, fmt.Errorf("%s holds %d readable PEM blocks %q of %d: %w", path, len(certs), typeCert, n,
			errdefs.ErrInvalidArgument)
	}
	return certs, nil
}

func readKey(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, missing(path, err)
	}
	der, err := decode(path, typeKey, data)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w: %w", path, errdefs.ErrInvalidArgument, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("key %s cannot sign: %w", path, errdefs.ErrInvalidArgument)
	}
	return signer, nil
}

func missing(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there (godwit node init or join makes it): %w: %w", path, errdefs.ErrNotFound, err)
	}
	return fmt.Errorf("read %s: %w", path, err)
}
