package snapshot

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/snapshot/seal"
)

// Sealed stands for Spec and Resume in the config of a sealed snapshot, whose device
// state, index and frames are sealed too. What is left to read is what a node needs to
// know before it has the key: whose snapshot it is, and where it can run.
type Sealed struct {
	Locks []seal.Locked `json:"locks"`
	Body  []byte        `json:"body"` // sealedBody, sealed
}

// sealedBody is what only a node with a key reads. Packs say by which key each pack is
// sealed: 0 is that of this push, n is Keys[n-1], that of an earlier push whose pages are
// still in use.
type sealedBody struct {
	Ref    Ref             `json:"ref"`
	Spec   *spec.Spec      `json:"spec"`
	Resume json.RawMessage `json:"resume,omitempty"`
	Keys   []*seal.Key     `json:"keys,omitempty"`
	Packs  []int           `json:"packs"`
}

// What sealed bytes are about.
const (
	aboutConfig = "config"
	aboutIndex  = "index"
	aboutState  = "state"
)

// maxSealedState: sealed bytes are opened as a whole.
const maxSealedState = 256 << 20

// encodeConfig returns the config blob of a push.
func (p *push) encodeConfig(packs []*pack) ([]byte, error) {
	if p.o.Make != nil {
		return p.encodeGolden()
	}
	c := *p.config
	if p.key != nil {
		var err error
		if c.Sealed, err = p.sealConfig(packs); err != nil {
			return nil, err
		}
		c.Spec, c.Resume = nil, nil
	}
	data, err := json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return data, nil
}

func (p *push) sealConfig(packs []*pack) (*Sealed, error) {
	body := sealedBody{Ref: p.o.Ref, Spec: p.config.Spec, Resume: p.config.Resume, Packs: make([]int, len(packs))}
	numbers := map[*seal.Key]int{p.key: 0}
	for i, k := range packs {
		n, ok := numbers[k.key]
		if !ok {
			body.Keys = append(body.Keys, k.key)
			n = len(body.Keys)
			numbers[k.key] = n
		}
		body.Packs[i] = n
	}
	plain, err := json.Marshal(&body)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	s := new(Sealed)
	if s.Body, err = p.key.Seal(nil, plain, aboutConfig); err != nil {
		return nil, err
	}
	s.Locks, err = p.o.Keys.Locks.Lock(p.key)
	return s, err
}

// sealed returns data as it is stored.
func (p *push) sealed(data []byte, about string) ([]byte, error) {
	if p.key == nil {
		return data, nil
	}
	return p.key.Seal(nil, data, about)
}

// sealState reads the device state whole.
func (p *push) sealState(size int64) ([]byte, error) {
	if size > maxSealedState {
		return nil, invalid("state", "%d bytes, at most %d can be sealed", size, maxSealedState)
	}
	return readSealed(p.key, p.src.State, size)
}

func readSealed(k *seal.Key, f *os.File, size int64) ([]byte, error) {
	plain := make([]byte, size)
	if _, err := f.ReadAt(plain, 0); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return k.Seal(nil, plain, aboutState)
}

// unseal gives a config its Spec back. The keys it returns are nil for a snapshot that is
// not sealed.
func (c *Config) unseal(locks *seal.Locks) (*seal.Key, *sealedBody, error) {
	if c.Sealed == nil {
		if locks.Required {
			return nil, nil, fmt.Errorf("snapshot is not sealed, and this node takes sealed ones only (seal.required): %w",
				errdefs.ErrPermissionDenied)
		}
		return nil, nil, nil
	}
	if c.Spec != nil || c.Resume != nil {
		return nil, nil, invalid("sealed", "together with a spec that is not")
	}
	key, err := locks.Unlock(c.Sealed.Locks)
	if err != nil {
		return nil, nil, err
	}
	plain, err := key.Open(nil, c.Sealed.Body, aboutConfig)
	if err != nil {
		return nil, nil, err
	}
	var head struct {
		Spec struct {
			Version int `json:"version"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(plain, &head); err != nil {
		return nil, nil, invalid("sealed body", "%v", err)
	}
	if err := checkSpecVersion(head.Spec.Version); err != nil {
		return nil, nil, err
	}
	body := new(sealedBody)
	if err := decodeStrict(plain, "sealed body", body); err != nil {
		return nil, nil, err
	}
	if err := body.Ref.match(c.Ref); err != nil {
		return nil, nil, fmt.Errorf("sealed body and config differ: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	c.Spec, c.Resume = body.Spec, body.Resume
	return key, body, nil
}

// packKeys returns the key of each pack.
func (b *sealedBody) packKeys(own *seal.Key, packs int) ([]*seal.Key, error) {
	if len(b.Packs) != packs {
		return nil, invalid("sealed", "keys of %d packs, %d in the manifest", len(b.Packs), packs)
	}
	keys := make([]*seal.Key, packs)
	for i, n := range b.Packs {
		switch {
		case n == 0:
			keys[i] = own
		case n < 0 || n > len(b.Keys) || b.Keys[n-1] == nil:
			return nil, invalid("sealed", "pack %d: key %d of %d", i, n, len(b.Keys))
		default:
			keys[i] = b.Keys[n-1]
		}
	}
	return keys, nil
}

// openState writes the sealed device state to w, in the clear.
func (s *Snapshot) openState(sealed []byte, w io.Writer) error {
	plain, err := s.key.Open(nil, sealed, aboutState)
	if err != nil {
		return fmt.Errorf("restore snapshot %s: %w", s.Digest, err)
	}
	_, err = w.Write(plain)
	return err
}
