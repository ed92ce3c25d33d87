package nodesetup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/durable"
)

const (
	// prefix of the files that are written here. Those of an administrator on the node, with later names, override them.
	prefix = config.KubernetesPrefix
	// containerdConfig is containerd's own, by its path on the host.
	containerdConfig = "/etc/containerd/config.toml"
	// imports has containerd read the files of packages.
	imports = "imports = ['/etc/containerd/conf.d/*.toml']\n"
	// peerPort is where controllers and other nodes reach a node.
	peerPort = "7444"
)

// dropIns are the files of this node's configuration: its names, and what all nodes of the cluster have.
func (s Setup) dropIns() (map[string][]byte, error) {
	all := map[string][]byte{prefix + "node.toml": fmt.Appendf(nil, "node = %q\n[peer]\nlisten = %q\n", s.Node,
		net.JoinHostPort(s.Address, peerPort))}
	names, err := tomlFiles(s.Defaults)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if all[prefix+name], err = os.ReadFile(filepath.Join(s.Defaults, name)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tomlFiles are the names of a directory's files, *.toml.
func tomlFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) == ".toml" {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// configure writes the node's configuration, and reads the whole of it. Files of before that are none now go.
func (s Setup) configure() (*config.Config, error) {
	all, err := s.dropIns()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.Root, filepath.Dir(config.DefaultPath), "config.d")
	for name, text := range all {
		if err := replace(filepath.Join(dir, name), text); err != nil {
			return nil, err
		}
	}
	names, err := tomlFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, now := all[name]; !now && strings.HasPrefix(name, prefix) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		}
	}
	return config.Load(filepath.Join(s.Root, config.DefaultPath))
}

var importLine = regexp.MustCompile(`(?m)^\s*imports\s*=\s*\[([^\]]*)\]`)

// imported has containerd's configuration import the files of packages. What else is there stays.
func imported(file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return replace(file, []byte("version = 3\n"+imports))
	}
	if err != nil {
		return err
	}
	line := importLine.FindSubmatch(text)
	switch {
	case line != nil && bytes.Contains(line[1], []byte("/etc/containerd/conf.d/*.toml")):
		return nil
	case line != nil && len(bytes.TrimSpace(line[1])) > 0:
		return fmt.Errorf("%s imports other files: add '/etc/containerd/conf.d/*.toml' to its imports: %w", file,
			errdefs.ErrFailedPrecondition)
	case line != nil:
		text = importLine.ReplaceAllLiteral(text, []byte(imports[:len(imports)-1]))
	default: // a key outside of tables comes before all of them
		text = append([]byte(imports), text...)
	}
	return replace(file, text)
}

// replace writes a file if its content is another one.
func replace(file string, text []byte) error {
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return durable.WriteFile(file, text, 0o644)
}
