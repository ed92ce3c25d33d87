package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

const (
	// DefaultPath is read where no other file is named; it may be missing.
	DefaultPath = "/etc/godwit/config.toml"
	// PathVariable of the environment names the file where the caller does not.
	PathVariable = "GODWIT_CONFIG"
	// KubernetesPrefix of the files in config.d that the set-up of a Kubernetes node writes. It is no key: a shim of the
	// release before reads these files too, and knows no new one.
	KubernetesPrefix = "kubernetes-"
)

// Load reads path, else the file that GODWIT_CONFIG names, else DefaultPath. It then reads
// config.d/*.toml in the same directory, in the order of their names. Each file overrides those
// before it. Only the default file may be missing.
func Load(path string) (*Config, error) {
	path = Path(path)
	explicit := path != ""
	if !explicit {
		path = DefaultPath
	}
	c := Default()
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration %s: the file does not exist. To name another one: --config, "+
			"or "+PathVariable+": %w", path, errdefs.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	default:
		if err := decode(path, data, c); err != nil {
			return nil, err
		}
	}
	if err := dropIns(filepath.Join(filepath.Dir(path), "config.d"), c); err != nil {
		return nil, err
	}
	return finish(path, c)
}

// Path is the absolute path of the file that Load takes for path; empty if that is
// the default one. It is what another process, with other environment and working
// directory, has to be given.
func Path(path string) string {
	if path == "" {
		path = os.Getenv(PathVariable)
	}
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return abs
	}
	return path
}

// Parse reads one TOML text; name stands for its file in errors.
func Parse(name string, data []byte) (*Config, error) {
	c := Default()
	if err := decode(name, data, c); err != nil {
		return nil, err
	}
	return finish(name, c)
}

func finish(name string, c *Config) (*Config, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, err)
	}
	if err := c.derive(); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, err)
	}
	return c, nil
}

func dropIns(dir string, c *Config) error {
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != ".toml" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		if err := decode(path, data, c); err != nil {
			return err
		}
		c.Kubernetes = c.Kubernetes || strings.HasPrefix(e.Name(), KubernetesPrefix)
	}
	return nil
}

// decode sets what data names and leaves the rest of c alone.
func decode(name string, data []byte, c *Config) error {
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(c)
	if err == nil {
		return c.rename(name, data)
	}
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		e := unknown.Errors[0]
		line, _ := e.Position()
		return fmt.Errorf("configuration %s line %d: unknown key %q: remove it or see docs/reference/configuration.md: %w",
			name, line, strings.Join(e.Key(), "."), errdefs.ErrInvalidArgument)
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, _ := bad.Position()
		return fmt.Errorf("configuration %s line %d: key %q: %s: %w",
			name, line, strings.Join(bad.Key(), "."), strings.TrimPrefix(bad.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("configuration %s: %w: %w", name, err, errdefs.ErrInvalidArgument)
}
