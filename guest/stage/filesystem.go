package stage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// CheckFilesystem names an option with which the guest does not mount the file system of a disk. It says whether the
// options make the mount read-only.
func CheckFilesystem(kind string, given []string) (readOnly bool, err error) {
	flags, _, err := FilesystemOptions(kind, given)
	return flags&unix.MS_RDONLY != 0, err
}

// FilesystemOptions are what mount(2) takes for a disk.
func FilesystemOptions(kind string, given []string) (flags uintptr, data string, err error) {
	o, err := (&Mount{Target: kind, Options: given}).options()
	if err != nil {
		return 0, "", err
	}
	if o.flags&(unix.MS_BIND|unix.MS_REC) != 0 || len(o.propagation) > 0 {
		return 0, "", fmt.Errorf("options %q: one is for a bind mount: %w", given, errdefs.ErrInvalidArgument)
	}
	for _, s := range o.data {
		name, _, _ := strings.Cut(s, "=")
		if !slices.Contains(dataOptions[kind], name) || strings.Contains(s, ",") {
			return 0, "", fmt.Errorf("option %q of %s is not known in the guest: leave it out: %w", s, kind,
				errdefs.ErrNotImplemented)
		}
	}
	return o.flags, strings.Join(o.data, ","), nil
}
