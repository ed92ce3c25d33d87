// Package seal hides what a snapshot holds from the store that keeps the snapshot. Its pages,
// device state, index and Spec are encrypted under a key of that push, and that key under keys
// of the nodes. docs/dev/protocols/snapshot-format.md describes both for other readers.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Overhead is how many bytes longer sealed bytes are: a nonce of 12 before, a tag of 16 after.
const Overhead = nonceSize + tagSize

const (
	keySize   = 32
	nonceSize = 12
	tagSize   = 16
)

// Key seals the parts of one push, or opens those of an earlier one. Its nonces count. That is
// safe because a key that seals is made for one push and never used again. A key that came from
// elsewhere only opens.
type Key struct {
	secret [keySize]byte
	aead   cipher.AEAD
	seals  bool
	next   atomic.Uint64
}

// NewKey makes a key that seals.
func NewKey() *Key {
	var secret [keySize]byte
	_, _ = rand.Read(secret[:]) // never fails
	k := newKey(secret)
	k.seals = true
	return k
}

func newKey(secret [keySize]byte) *Key {
	block, err := aes.NewCipher(secret[:])
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCM(block); err == nil {
			return &Key{secret: secret, aead: aead}
		}
	}
	panic(err) // keys of other lengths only, which the type excludes
}

// Seal appends the sealed form of plain to dst. What the bytes are said to be about must
// be said again to open them, so that no part can stand for another.
func (k *Key) Seal(dst, plain []byte, about string) ([]byte, error) {
	if !k.seals {
		return nil, fmt.Errorf("seal %s: the key of another push: %w", about, errdefs.ErrInternal)
	}
	var nonce [nonceSize]byte
	binary.BigEndian.PutUint64(nonce[nonceSize-8:], k.next.Add(1))
	return k.aead.Seal(append(dst, nonce[:]...), nonce[:], plain, []byte(about)), nil
}

// Open appends to dst what was sealed. Bytes that were altered, sealed under another key
// or about something else are DataLoss.
func (k *Key) Open(dst, sealed []byte, about string) ([]byte, error) {
	if len(sealed) < Overhead {
		return nil, fmt.Errorf("open sealed %s: %d bytes: %w", about, len(sealed), errdefs.ErrDataLoss)
	}
	plain, err := k.aead.Open(dst, sealed[:nonceSize], sealed[nonceSize:], []byte(about))
	if err != nil {
		return nil, fmt.Errorf("open sealed %s: altered, or sealed under another key: %w", about, errdefs.ErrDataLoss)
	}
	return plain, nil
}

// MarshalJSON writes the secret: into what is itself sealed, or stays on this node.
func (k *Key) MarshalJSON() ([]byte, error) { return json.Marshal(k.secret[:]) }

// UnmarshalJSON makes a key that opens.
func (k *Key) UnmarshalJSON(data []byte) error {
	var secret []byte
	if err := json.Unmarshal(data, &secret); err != nil {
		return err
	}
	if len(secret) != keySize {
		return fmt.Errorf("key of %d bytes: %w", len(secret), errdefs.ErrInvalidArgument)
	}
	opened := newKey([keySize]byte(secret))
	k.secret, k.aead = opened.secret, opened.aead
	return nil
}

// String keeps secrets out of logs.
func (k *Key) String() string { return "sealing key" }

// Secret returns the bytes of the key, for a file that only its owner reads.
func (k *Key) Secret() [32]byte { return k.secret }

// FromSecret makes a key that opens.
func FromSecret(secret [32]byte) *Key { return newKey(secret) }
