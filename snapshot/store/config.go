package store

import (
	"path/filepath"
	"strings"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
)

// ConfigOf says how to reach a repository as a node's configuration says, with the node's own keys.
func ConfigOf(cfg *config.Config, repository string) Config {
	r := cfg.Registry
	return Config{Repository: repository, PlainHTTP: r.PlainHTTP, CAFile: r.CAFile, DockerConfig: r.DockerConfig,
		HostsDir: r.HostsDir, Bandwidth: int64(cfg.Worker.Bandwidth), Root: rootOf(cfg, repository), Notes: cfg.StoresDir()}
}

// rootOf answers the directory of layouts that a repository lies in: the node's own, or that of another prefix, below
// which the directory of a VM has the VM's uid for its name.
func rootOf(cfg *config.Config, repository string) string {
	dir, ok := strings.CutPrefix(repository, LayoutPrefix)
	if !ok || cfg.StateDir == "" {
		return ""
	}
	parent := filepath.Dir(dir)
	if parent == cfg.Registry.Layout || parent == cfg.DefaultStore() || record.IsUID(filepath.Base(dir)) {
		return parent
	}
	return ""
}
