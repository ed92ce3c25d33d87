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
	"syscall"

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
	own, err := placeOf(s.Root, config.DefaultPath)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(filepath.Dir(own), "config.d")
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
	return config.Load(own)
}

var importLine = regexp.MustCompile(`(?m)^\s*imports\s*=\s*\[([^\]]*)\]`)

// imported has containerd's configuration import the files of packages. What else is there stays, also its mode and
// owner. Only a name that is not there says that there is none: a link may lead to what is not seen here.
func imported(root string) error {
	file, err := placeOf(root, containerdConfig)
	if err != nil {
		return err
	}
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replace(file, []byte("version = 3\n"+imports))
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return linked(root)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line := importLine.FindSubmatch(text)
	switch {
	case importsOurs(line):
		return nil
	case line != nil && len(bytes.TrimSpace(line[1])) > 0:
		return fmt.Errorf("%s imports other files: add '/etc/containerd/conf.d/*.toml' to its imports: %w",
			containerdConfig, errdefs.ErrFailedPrecondition)
	case line != nil:
		text = importLine.ReplaceAllLiteral(text, []byte(imports[:len(imports)-1]))
	default: // a key outside of tables comes before all of them
		text = append([]byte(imports), text...)
	}
	return rewrite(file, info, text)
}

// linked refuses a configuration that is a link, unless what it leads to imports the files of packages already.
func linked(root string) error {
	target, err := place(root, containerdConfig)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(target)
	if err == nil && importsOurs(importLine.FindSubmatch(text)) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the refusal says what to do
	}
	return errors.Join(fmt.Errorf("%s is a link, so another program keeps it: have that add "+
		"'/etc/containerd/conf.d/*.toml' to its imports: %w", containerdConfig, errdefs.ErrFailedPrecondition), err)
}

// importsOurs reports whether a line with imports has the files of packages.
func importsOurs(line [][]byte) bool {
	return line != nil && bytes.Contains(line[1], []byte("/etc/containerd/conf.d/*.toml"))
}

// rewrite gives a file that is there another content. Its mode and owner stay.
func rewrite(file string, was fs.FileInfo, text []byte) error {
	staged := durable.Unfinished(file)
	if err := durable.Stage(staged, text, was.Mode().Perm()); err != nil {
		return err
	}
	if at, ok := was.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(staged, int(at.Uid), int(at.Gid)); err != nil {
			return errors.Join(err, os.Remove(staged))
		}
	}
	return durable.Rename(staged, file)
}

// replace writes a file of godwit's own if its content is another one.
func replace(file string, text []byte) error {
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return durable.WriteFile(file, text, 0o644)
}
