package config

import (
	"fmt"

	"github.com/pelletier/go-toml/v2"
)

// Renamed is a key that a file has by the name of the release before. It counts, for one release.
type Renamed struct {
	File     string
	Old, New string
}

// rename takes over what a file says by old names. The text was decoded into c already.
func (c *Config) rename(name string, data []byte) error {
	t, b := &c.Template, &c.Template.Boot
	var now struct {
		Template struct{ Boot map[string]any }
	}
	if err := toml.Unmarshal(data, &now); err != nil {
		return err
	}
	for _, k := range []struct {
		key   string
		there bool
		take  func()
	}{
		{"mode", t.Mode != nil, func() { b.Mode = *t.Mode }},
		{"after", t.After != nil, func() { b.After = *t.After }},
		{"max", t.Max != nil, func() { b.Max = *t.Max }},
		{"max_size", t.MaxSize != nil, func() { b.MaxSize = *t.MaxSize }},
	} {
		if !k.there {
			continue
		}
		r := Renamed{File: name, Old: "template." + k.key, New: "template.boot." + k.key}
		if _, both := now.Template.Boot[k.key]; both {
			return fmt.Errorf("configuration %s: %w", name,
				invalid(r.Old, "it is the old name of %s, which is there too: remove it", r.New))
		}
		k.take()
		c.Renamed = append(c.Renamed, r)
	}
	t.Mode, t.After, t.Max, t.MaxSize = nil, nil, nil, nil
	return nil
}
