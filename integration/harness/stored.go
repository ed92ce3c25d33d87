package harness

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Stored is when the registry had what was pushed, by the times of its own files: nothing
// stands in the way to it.
type Stored struct {
	LastBlob time.Time
	Manifest time.Time // the last one, the commit in the registry
}

// Stored reads it of all that was pushed since begun.
func (h *Harness) Stored(begun time.Time) (Stored, error) {
	var p Stored
	err := filepath.WalkDir(filepath.Join(h.Dir, "registry/docker/registry/v2/repositories"),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "link" {
				return err
			}
			info, err := d.Info()
			if err != nil || info.ModTime().Before(begun) {
				return err
			}
			switch at := info.ModTime(); {
			case strings.Contains(path, "/_manifests/revisions/") && at.After(p.Manifest):
				p.Manifest = at
			case strings.Contains(path, "/_layers/") && at.After(p.LastBlob):
				p.LastBlob = at
			}
			return nil
		})
	if err == nil && (p.Manifest.IsZero() || p.LastBlob.IsZero()) {
		err = fmt.Errorf("the registry has taken no manifest, or no blob, since %s", begun.Format(time.RFC3339Nano))
	}
	return p, err
}
