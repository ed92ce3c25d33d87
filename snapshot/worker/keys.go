package worker

import (
	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
)

// Keys name the files of a node's keys. No key is in a job.
type Keys struct {
	Seal seal.Config `json:"seal,omitzero"`
	Sign sign.Config `json:"sign,omitzero"`
}

// KeysOf are those of the configuration.
func KeysOf(cfg *config.Config) Keys {
	return Keys{
		Seal: seal.Config{
			KeyFiles: cfg.Seal.KeyFiles, Recipients: cfg.Seal.Recipients, IdentityFile: cfg.Seal.IdentityFile,
			Required: cfg.Seal.Required,
		},
		Sign: sign.Config{KeyFile: cfg.Sign.KeyFile, Trusted: cfg.Sign.Trusted, Required: cfg.Sign.Required},
	}
}

// Load reads the files. An error names the key of the configuration and the remedy.
func (k Keys) Load() (keys snapshot.Keys, err error) {
	if keys.Locks, err = seal.Load(k.Seal); err != nil {
		return keys, err
	}
	keys.Trust, err = sign.Load(k.Sign)
	return keys, err
}
