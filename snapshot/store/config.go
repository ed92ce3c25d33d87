package store

import (
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"godwit.dev/godwit/api/config"
)

// ConfigOf says how to reach a repository as a node's configuration says, with the node's own keys.
func ConfigOf(cfg *config.Config, repository string) Config {
	r := cfg.Registry
	return Config{Repository: repository, PlainHTTP: r.PlainHTTP, CAFile: r.CAFile, DockerConfig: r.DockerConfig,
		HostsDir: r.HostsDir, Bandwidth: int64(cfg.Worker.Bandwidth), Root: rootOf(cfg, repository), Notes: cfg.StoresDir()}
}

// rootOf answers the directory of layouts that a repository lies in: the node's own, or that of another prefix, below
// which the directory of a VM has the VM's uid for its name: a UUID, or UUID.MEMBER of a set.
func rootOf(cfg *config.Config, repository string) string {
	dir, ok := strings.CutPrefix(repository, LayoutPrefix)
	if !ok || cfg.StateDir == "" {
		return ""
	}
	parent := filepath.Dir(dir)
	uid, _, _ := strings.Cut(filepath.Base(dir), ".")
	if parent == cfg.Registry.Layout || parent == cfg.DefaultStore() || uuid.Validate(uid) == nil {
		return parent
	}
	return ""
}
