package sign

import (
	"encoding/pem"
	"fmt"

	"github.com/containerd/errdefs"
)

const (
	privateBlock = "PRIVATE KEY"
	publicBlock  = "PUBLIC KEY"
	// mostTrusted bounds how many keys are handed over at once.
	mostTrusted = 64
)

// Parse reads a key that signs, and keys that are trusted in addition, out of blocks of PEM. It answers them as
// Trust.Under takes them. An error quotes nothing of them.
func Parse(signs, trusts []byte) (key []byte, trusted [][]byte, err error) {
	b, _ := pem.Decode(signs)
	if b == nil || b.Type != privateBlock {
		return nil, nil, fmt.Errorf("no PEM block of type %s: %w", privateBlock, errdefs.ErrInvalidArgument)
	}
	for rest := trusts; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != publicBlock {
			return nil, nil, fmt.Errorf("a PEM block that is no %s: %w", publicBlock, errdefs.ErrInvalidArgument)
		}
		trusted = append(trusted, block.Bytes)
	}
	if len(trusts) > 0 && len(trusted) == 0 {
		return nil, nil, fmt.Errorf("no PEM block of type %s: %w", publicBlock, errdefs.ErrInvalidArgument)
	}
	if _, err := (Trust{}).Under(b.Bytes, trusted); err != nil {
		return nil, nil, err
	}
	return b.Bytes, trusted, nil
}

// Under is the trust of a node that signs with a given key, and no other. It trusts that one and given others. Whom the
// node trusts by itself, it trusts still.
func (t Trust) Under(key []byte, trusted [][]byte) (Trust, error) {
	if len(trusted) > mostTrusted {
		return Trust{}, fmt.Errorf("%d trusted keys of a class: %w", len(trusted), errdefs.ErrInvalidArgument)
	}
	signer, err := parseSigner(key)
	if err != nil {
		return Trust{}, fmt.Errorf("signing key of a class: %w", err)
	}
	all := append(t.keys[:len(t.keys):len(t.keys)], signer.Public())
	for _, der := range trusted {
		public, err := parsePublic(der)
		if err != nil {
			return Trust{}, fmt.Errorf("trusted key of a class: %w", err)
		}
		all = append(all, public)
	}
	t.signer, t.keys = signer, all
	return t, nil
}
