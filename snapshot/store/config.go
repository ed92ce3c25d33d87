package store

import "godwit.dev/godwit/api/config"

// ConfigOf says how to reach a repository as a node's configuration says, with the node's own keys.
func ConfigOf(cfg *config.Config, repository string) Config {
	r := cfg.Registry
	return Config{Repository: repository, PlainHTTP: r.PlainHTTP, CAFile: r.CAFile, DockerConfig: r.DockerConfig,
		HostsDir: r.HostsDir, Bandwidth: int64(cfg.Worker.Bandwidth)}
}
