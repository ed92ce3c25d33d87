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
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data)))
		if err != nil || len(secret) != keySize {
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
