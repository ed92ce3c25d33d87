package worker

import (
	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/seal"
	"godwit.dev/godwit/snapshot/sign"
	"godwit.dev/godwit/snapshot/store"
)

// Keys name the files of a node's keys. None of these is in a job: one has only the keys that a controller has handed
// over for its store, which are in no file.
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

// Load reads the files. An error names the key of the configuration and the remedy. What a controller has handed over
// seals and signs instead; what the node's own keys open and vouch for is taken still.
func (k Keys) Load(handed *store.Keys) (keys snapshot.Keys, err error) {
	if keys.Locks, err = seal.Load(k.Seal); err != nil {
		return keys, err
	}
	if keys.Trust, err = sign.Load(k.Sign); err != nil || handed == nil {
		return keys, err
	}
	if len(handed.Seal) > 0 {
		if keys.Locks, err = keys.Locks.Under(handed.Seal); err != nil {
			return keys, err
		}
	}
	if len(handed.Sign)+len(handed.Trusted) > 0 {
		keys.Trust, err = keys.Trust.Under(handed.Sign, handed.Trusted)
	}
	return keys, err
}
