package client

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// volume is a file or directory of the host that is copied into a VM when it boots.
type volume struct {
	mount specs.Mount
	write bool // a directory whose copy the VM may write
}

// hides reports whether another volume has the same path in the VM.
func (v volume) hides(other volume) bool {
	return path.Clean(v.mount.Destination) == path.Clean(other.mount.Destination)
}

// parseVolume reads HOST:PATH[:ro|:copy]. A VM has a copy of what the host has. So a directory needs ro or copy: what
// the VM writes never comes back to the host.
func parseVolume(said string) (volume, error) {
	bad := func(why string) error {
		return fmt.Errorf("-v %q: %s: %w", said, why, errdefs.ErrInvalidArgument)
	}
	parts := strings.Split(said, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return volume{}, bad("write it as HOST:PATH:ro or HOST:PATH:copy")
	}
	host, inner, mode := parts[0], parts[1], ""
	if len(parts) == 3 {
		mode = parts[2]
	}
	if !path.IsAbs(inner) {
		return volume{}, bad(fmt.Sprintf("%q is no absolute path in the VM", inner))
	}
	if !strings.ContainsRune(host, filepath.Separator) && !strings.HasPrefix(host, ".") {
		return volume{}, bad(fmt.Sprintf("%q would be a named volume, and godwit has none. Name a path of the host: ./%s",
			host, host))
	}
	host, err := filepath.Abs(host)
	if err != nil {
		return volume{}, bad(err.Error())
	}
	info, err := os.Stat(host)
	if err != nil {
		return volume{}, fmt.Errorf("-v %q: %w: %w", said, err, errdefs.ErrNotFound)
	}
	v := volume{mount: specs.Mount{Type: "bind", Source: host, Destination: inner, Options: []string{"rbind", "ro"}}}
	switch {
	case mode == "ro":
	case mode == "copy", mode == "" && !info.IsDir():
		v.mount.Options, v.write = []string{"rbind", "rw"}, info.IsDir()
	case mode == "" || mode == "rw":
		return volume{}, bad(fmt.Sprintf("a VM gets a copy of %s, and what it writes there stays in the VM. If that is "+
			"what you want: -v %s:%s:copy. To only read: -v %s:%s:ro", host, host, inner, host, inner))
	default:
		return volume{}, bad(fmt.Sprintf("%q is no mode: write ro or copy", mode))
	}
	return v, nil
}
