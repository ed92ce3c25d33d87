package seal

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"filippo.io/age"
	"github.com/containerd/errdefs"
)

// Config names the keys of a node, as its configuration does.
type Config struct {
	KeyFiles     []string
	Recipients   []string
	IdentityFile string
	Required     bool
}

// Load reads the files. An error names the key of the configuration and the remedy.
func Load(c Config) (Locks, error) {
	l := Locks{Recipients: c.Recipients, Required: c.Required}
	for _, path := range c.KeyFiles {
		data, err := private("seal.key_files", path)
		if err != nil {
			return Locks{}, err
		}
		secret, ok := parse(string(data))
		if !ok {
			return Locks{}, fmt.Errorf("seal.key_files: %s is not 32 bytes in base64 (make one: head -c 32 /dev/urandom | "+
				"base64): %w",
				path, errdefs.ErrInvalidArgument)
		}
		l.Keys = append(l.Keys, secret)
	}
	for _, name := range c.Recipients {
		if _, err := age.ParseRecipients(strings.NewReader(name)); err != nil {
			return Locks{}, fmt.Errorf("seal.recipients: %q: %w: %w", name, err, errdefs.ErrInvalidArgument)
		}
	}
	if c.IdentityFile != "" {
		data, err := private("seal.identity_file", c.IdentityFile)
		if err != nil {
			return Locks{}, err
		}
		l.Identities = string(data)
		if _, err := age.ParseIdentities(strings.NewReader(l.Identities)); err != nil {
			return Locks{}, fmt.Errorf("seal.identity_file: %s: %w: %w", c.IdentityFile, err, errdefs.ErrInvalidArgument)
		}
	}
	return l, nil
}

// parse reads a key.
func parse(text string) (Secret, bool) {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	return secret, err == nil && len(secret) == keySize
}

// mostKeys bounds how many keys are handed over at once.
const mostKeys = 64

// Parse reads keys of 32 bytes in base64, one a line. The first one seals. An error quotes nothing of them.
func Parse(text string) (keys [][]byte, err error) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		secret, ok := parse(line)
		if !ok {
			return nil, fmt.Errorf("line %d is not 32 bytes in base64: %w", len(keys)+1, errdefs.ErrInvalidArgument)
		}
		keys = append(keys, secret)
	}
	if len(keys) == 0 || len(keys) > mostKeys {
		return nil, fmt.Errorf("%d keys, not 1 to %d: %w", len(keys), mostKeys, errdefs.ErrInvalidArgument)
	}
	return keys, nil
}

// Under are locks of which given keys lock, and no others. What the node's own open, they open still.
func (l Locks) Under(keys [][]byte) (Locks, error) {
	if len(keys) == 0 || len(keys) > mostKeys {
		return Locks{}, fmt.Errorf("%d sealing keys of a class: %w", len(keys), errdefs.ErrInvalidArgument)
	}
	all := make([]Secret, 0, len(keys)+len(l.Keys))
	for _, k := range keys {
		if len(k) != keySize {
			return Locks{}, fmt.Errorf("sealing key of a class of %d bytes: %w", len(k), errdefs.ErrInvalidArgument)
		}
		all = append(all, k)
	}
	l.Keys, l.Recipients = append(all, l.Keys...), nil
	return l, nil
}

// private reads a file that only its owner may read.
func private(key, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", key, err, errdefs.ErrFailedPrecondition)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: %s can be read by others (chmod 600): %w", key, path, errdefs.ErrFailedPrecondition)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", key, err, errdefs.ErrFailedPrecondition)
	}
	return data, nil
}
