package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/containerd/errdefs"
)

// Locks are the keys of a node, which lock the keys of snapshots. The zero value locks
// and opens nothing.
type Locks struct {
	// Keys are secrets of 32 bytes. The first locks; each opens.
	Keys []Secret `json:"keys,omitempty"`
	// Recipients lock, Identities open: native age X25519 and hybrid ones.
	Recipients []string `json:"recipients,omitempty"`
	Identities string   `json:"identities,omitempty"` // lines of an age identity file
	// Required refuses a snapshot that is not sealed.
	Required bool `json:"required,omitempty"`
}

// Secret is a key of the node, shared by all nodes that wake each other's VMs.
type Secret []byte

// Locked is a snapshot's key as one of the locks holds it.
type Locked struct {
	Kind string `json:"kind"` // "key", "age"
	// ID tells people and nodes which key it takes: of a secret the first bytes of a hash,
	// of age the recipient.
	ID   string `json:"id"`
	Data []byte `json:"data"`
}

// Kinds of locks.
const (
	kindKey = "key"
	kindAge = "age"
)

// On tells whether new snapshots are sealed.
func (l *Locks) On() bool { return len(l.Keys) > 0 || len(l.Recipients) > 0 }

// ID of a secret. It is a hash of its own kind: it tells nothing of the secret.
func (s Secret) ID() string {
	sum := sha256.Sum256(append([]byte("godwit seal key id v1\n"), s...))
	return hex.EncodeToString(sum[:8])
}

// Lock locks k for everybody who is named.
func (l *Locks) Lock(k *Key) ([]Locked, error) {
	var list []Locked
	if len(l.Keys) > 0 {
		data, err := l.Keys[0].lock(k)
		if err != nil {
			return nil, fmt.Errorf("lock sealing key: %w", err)
		}
		list = append(list, Locked{Kind: kindKey, ID: l.Keys[0].ID(), Data: data})
	}
	for _, name := range l.Recipients {
		data, err := lockAge(name, k)
		if err != nil {
			return nil, fmt.Errorf("lock sealing key for %s: %w", name, err)
		}
		list = append(list, Locked{Kind: kindAge, ID: name, Data: data})
	}
	return list, nil
}

// Unlock returns the key that list holds. FailedPrecondition names the locks for which
// this node has no key.
func (l *Locks) Unlock(list []Locked) (*Key, error) {
	var ids []string
	for _, w := range list {
		ids = append(ids, w.Kind+" "+w.ID)
		var secret []byte
		var err error
		switch w.Kind {
		case kindKey:
			i := slices.IndexFunc(l.Keys, func(s Secret) bool { return s.ID() == w.ID })
			if i < 0 {
				continue
			}
			secret, err = l.Keys[i].unlock(w.Data)
		case kindAge:
			if secret, err = l.unlockAge(w.Data); secret == nil && err == nil {
				continue
			}
		default:
			continue
		}
		if err == nil && len(secret) != keySize {
			err = fmt.Errorf("%d bytes: %w", len(secret), errdefs.ErrDataLoss)
		}
		if err != nil {
			return nil, fmt.Errorf("unlock sealing key of %s %s: %w", w.Kind, w.ID, err)
		}
		return newKey([keySize]byte(secret)), nil
	}
	return nil, fmt.Errorf("snapshot is sealed for %s; this node has no key for any of them (keys seal.key_files and "+
		"seal.identity_file; on Kubernetes the Secret of its VMSnapshotClass): %w",
		strings.Join(ids, ", "), errdefs.ErrFailedPrecondition)
}

const lockAbout = "godwit seal v1"

func (s Secret) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(s)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// lock uses a random nonce: a node's key locks one key a push, far from 2^32 of them.
func (s Secret) lock(k *Key) ([]byte, error) {
	aead, err := s.aead()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, nonceSize, Overhead+keySize)
	_, _ = rand.Read(nonce)
	return aead.Seal(nonce, nonce, k.secret[:], []byte(lockAbout)), nil
}

func (s Secret) unlock(data []byte) ([]byte, error) {
	aead, err := s.aead()
	if err != nil {
		return nil, err
	}
	if len(data) != Overhead+keySize {
		return nil, fmt.Errorf("%d bytes: %w", len(data), errdefs.ErrDataLoss)
	}
	secret, err := aead.Open(nil, data[:nonceSize], data[nonceSize:], []byte(lockAbout))
	if err != nil {
		return nil, fmt.Errorf("altered: %w", errdefs.ErrDataLoss)
	}
	return secret, nil
}

func lockAge(name string, k *Key) ([]byte, error) {
	list, err := age.ParseRecipients(strings.NewReader(name))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, list...)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(k.secret[:]); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unlockAge returns nothing where no identity fits.
func (l *Locks) unlockAge(data []byte) ([]byte, error) {
	if l.Identities == "" {
		return nil, nil
	}
	ids, err := age.ParseIdentities(strings.NewReader(l.Identities))
	if err != nil {
		return nil, fmt.Errorf("seal.identity_file: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	r, err := age.Decrypt(bytes.NewReader(data), ids...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	secret, err := io.ReadAll(io.LimitReader(r, keySize+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
	}
	return secret, nil
}
