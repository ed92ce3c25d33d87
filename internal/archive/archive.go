// Package archive carries trees of files as tar streams, out of one directory and into another.
// Who reads a stream does not trust who wrote it: each member is checked, and none lands outside
// of the directory that it was unpacked into, whatever symbolic links lie there.
package archive

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// Result is what was carried.
type Result struct {
	Files int64 `json:"files"` // regular files
	Bytes int64 `json:"bytes"` // of their content
	// What has no place in a copy: devices, sockets, pipes. Named are the first few.
	Skipped int64    `json:"skipped,omitempty"`
	Names   []string `json:"names,omitempty"`
}

// named is how many members that were skipped have their name in a Result.
const named = 10

func (r *Result) skip(name string) {
	r.Skipped++
	if len(r.Names) < named {
		r.Names = append(r.Names, name)
	}
}

// special are the bits of a mode that give a file another user's rights.
const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// maxName bounds the name of a member, in bytes. It is Linux's PATH_MAX.
const maxName = 4096

// member is the name of a member as a path below the directory. Members have the name under, or
// lie below it; empty: any name.
func member(name, under string) (string, error) {
	if len(name) > maxName {
		return "", fmt.Errorf("member %.60q... of the archive: its name has %d bytes, and %d are allowed: %w", name,
			len(name), maxName, errdefs.ErrInvalidArgument)
	}
	if strings.ContainsRune(name, 0) || path.IsAbs(name) || !fs.ValidPath(path.Clean(name)) {
		return "", fmt.Errorf("member %q of the archive leads out of the directory: %w", name, errdefs.ErrInvalidArgument)
	}
	clean := path.Clean(name)
	if under != "" && under != "." && clean != under && !strings.HasPrefix(clean, under+"/") {
		return "", fmt.Errorf("member %q of the archive: only %q was asked for: %w", name, under, errdefs.ErrInvalidArgument)
	}
	return clean, nil
}
