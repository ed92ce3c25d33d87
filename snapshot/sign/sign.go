// Package sign says who vouches for a snapshot. A signature is of a small text that names the
// snapshot's digest. It has the form that cosign made common ("simple signing"), so that tools
// that people have verify it too.
package sign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// Config names the keys of a node, as its configuration does.
type Config struct {
	KeyFile  string   `json:"keyFile,omitempty"` // PKCS #8, signs
	Trusted  []string `json:"trusted,omitempty"` // files of public keys; that of KeyFile is one too
	Required bool     `json:"required,omitempty"`
}

// Trust is what a node signs with and believes. The zero value signs nothing and asks
// for no signature.
type Trust struct {
	Required bool
	signer   crypto.Signer
	keys     []crypto.PublicKey
}

// Load reads the files. An error names the key of the configuration and the remedy.
func Load(c Config) (Trust, error) {
	t := Trust{Required: c.Required}
	if c.KeyFile != "" {
		if err := t.loadSigner(c.KeyFile); err != nil {
			return Trust{}, err
		}
	}
	for _, path := range c.Trusted {
		key, err := publicKey(path)
		if err != nil {
			return Trust{}, err
		}
		t.keys = append(t.keys, key)
	}
	if t.Required && len(t.keys) == 0 {
		return Trust{}, fmt.Errorf("sign.required: no key is trusted: set sign.trusted or sign.key_file: %w",
			errdefs.ErrInvalidArgument)
	}
	return t, nil
}

func (t *Trust) loadSigner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("sign.key_file: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("sign.key_file: %s can be read by others (chmod 600): %w", path, errdefs.ErrFailedPrecondition)
	}
	block, err := block("sign.key_file", path, "PRIVATE KEY")
	if err != nil {
		return err
	}
	signer, err := parseSigner(block)
	if err != nil {
		return fmt.Errorf("sign.key_file: %s: %w", path, err)
	}
	t.signer, t.keys = signer, append(t.keys, signer.Public())
	return nil
}

func publicKey(path string) (crypto.PublicKey, error) {
	block, err := block("sign.trusted", path, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	key, err := parsePublic(block)
	if err != nil {
		return nil, fmt.Errorf("sign.trusted: %s: %w", path, err)
	}
	return key, nil
}

func parseSigner(der []byte) (crypto.Signer, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	signer, ok := key.(crypto.Signer)
	if !ok || !known(signer.Public()) {
		return nil, fmt.Errorf("a key of type %T; use ECDSA or Ed25519: %w", key, errdefs.ErrInvalidArgument)
	}
	return signer, nil
}

func parsePublic(der []byte) (crypto.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !known(key) {
		return nil, fmt.Errorf("a key of type %T; use ECDSA or Ed25519: %w", key, errdefs.ErrInvalidArgument)
	}
	return key, nil
}

func block(key, path, kind string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", key, err, errdefs.ErrFailedPrecondition)
	}
	b, _ := pem.Decode(data)
	if b == nil || b.Type != kind {
		return nil, fmt.Errorf("%s: %s holds no PEM block of type %s: %w", key, path, kind, errdefs.ErrInvalidArgument)
	}
	return b.Bytes, nil
}

func known(key crypto.PublicKey) bool {
	switch key.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// Signs tells whether new snapshots are signed.
func (t *Trust) Signs() bool { return t.signer != nil }

// payload is cosign's; fields that it does not need stay out.
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest digest.Digest `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

const payloadType = "cosign container image signature"

// Sign returns a text about d and its signature: of ECDSA that of the text's SHA-256, in
// ASN.1; of Ed25519 that of the text.
func (t *Trust) Sign(d digest.Digest) (text, signature []byte, err error) {
	var p payload
	p.Critical.Image.Digest, p.Critical.Type = d, payloadType
	if text, err = json.Marshal(p); err != nil {
		return nil, nil, fmt.Errorf("sign %s: %w", d, err)
	}
	if _, ok := t.signer.Public().(ed25519.PublicKey); ok {
		signature, err = t.signer.Sign(rand.Reader, text, crypto.Hash(0))
	} else {
		sum := sha256.Sum256(text)
		signature, err = t.signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("sign %s: %w", d, err)
	}
	return text, signature, nil
}

// Verify reports whether a trusted key has signed text, and text is about d.
func (t *Trust) Verify(d digest.Digest, text, signature []byte) bool {
	signed := false
	for _, key := range t.keys {
		switch key := key.(type) {
		case *ecdsa.PublicKey:
			sum := sha256.Sum256(text)
			signed = ecdsa.VerifyASN1(key, sum[:], signature)
		case ed25519.PublicKey:
			signed = ed25519.Verify(key, text, signature)
		}
		if signed {
			break
		}
	}
	if !signed {
		return false
	}
	// Only now is the text read: a trusted key made it.
	var p payload
	return json.Unmarshal(text, &p) == nil && p.Critical.Type == payloadType && p.Critical.Image.Digest == d
}

// Keys names those that are trusted, for an error.
func (t *Trust) Keys() (ids []string) {
	for _, key := range t.keys {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			continue // it was parsed from this form
		}
		sum := sha256.Sum256(der)
		ids = append(ids, hex.EncodeToString(sum[:8]))
	}
	return ids
}
