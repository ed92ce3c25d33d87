package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// minLog is as much as an output writes at once.
const minLog = 1 << 20

func (c *Config) validateLogs() error {
	l := c.Logs
	switch {
	case l.MaxBytes != 0 && l.MaxBytes < minLog:
		return invalid("logs.max_bytes", "%d is neither 0, which sets no bound, nor 1MiB or more", l.MaxBytes)
	case l.Files < 1 || l.Files > 100:
		return invalid("logs.files", "%d is not between 1 and 100", l.Files)
	}
	return nil
}

func (c *Config) validateStdio() error {
	u, err := url.Parse(strings.NewReplacer("{namespace}", "n", "{id}", "i").Replace(c.StdioURI))
	if err != nil || !slices.Contains([]string{"file", "binary"}, u.Scheme) || !filepath.IsAbs(u.Path) {
		return invalid("stdio_uri", "%q is not file:///PATH or binary:///PATH; {namespace} and {id} stand for the task's",
			c.StdioURI)
	}
	if u.Scheme == "file" && !strings.Contains(c.StdioURI, "{id}") {
		return invalid("stdio_uri", "%q gives every task the same file: put {namespace} and {id} into it", c.StdioURI)
	}
	return nil
}
