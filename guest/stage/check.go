package stage

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// CheckProcess names what a process asks for and no guest does. The shim asks before
// it boots one.
func CheckProcess(p *specs.Process) error {
	switch {
	case p == nil || len(p.Args) == 0 || p.Args[0] == "":
		return invalid("process.args", "it is empty: name a command")
	case !filepath.IsAbs(p.Cwd):
		return invalid("process.cwd", "%q is not an absolute path", p.Cwd)
	}
	for field, set := range map[string]bool{
		"process.apparmorProfile": p.ApparmorProfile != "",
		"process.selinuxLabel":    p.SelinuxLabel != "",
		"process.scheduler":       p.Scheduler != nil,
		"process.ioPriority":      p.IOPriority != nil,
		"process.execCPUAffinity": p.ExecCPUAffinity != nil,
		"process.commandLine":     p.CommandLine != "",
		"process.user.username":   p.User.Username != "",
	} {
		if set {
			return fmt.Errorf("%s: it is not passed to a guest: leave it out: %w", field, errdefs.ErrNotImplemented)
		}
	}
	if n := p.OOMScoreAdj; n != nil && (*n < -1000 || *n > 1000) {
		return invalid("process.oomScoreAdj", "%d is not between -1000 and 1000", *n)
	}
	if n := p.User.Umask; n != nil && *n > 0o777 {
		return invalid("process.user.umask", "%#o is not between 0 and 0777", *n)
	}
	for _, text := range append(slices.Clone(p.Args), p.Env...) {
		if strings.ContainsRune(text, 0) {
			return invalid("process", "%q holds a zero byte", text)
		}
	}
	if err := checkLimits(p.Rlimits); err != nil {
		return err
	}
	_, err := readCapabilities(p.Capabilities)
	return err
}

func checkLimits(limits []specs.POSIXRlimit) error {
	seen := map[string]bool{}
	for _, r := range limits {
		_, known := rlimits[r.Type]
		switch {
		case !known:
			return invalid("process.rlimits", "unknown type %q", r.Type)
		case seen[r.Type]:
			return invalid("process.rlimits", "%s is there twice", r.Type)
		case r.Soft > r.Hard:
			return invalid("process.rlimits", "%s: soft limit %d is above the hard one, %d", r.Type, r.Soft, r.Hard)
		}
		seen[r.Type] = true
	}
	return nil
}

// CheckPropagation of the root file system.
func CheckPropagation(how string) error {
	if _, ok := propagation[how]; !ok && how != "" {
		return invalid("linux.rootfsPropagation", "unknown %q", how)
	}
	return nil
}

// dataOptions are what the file systems of a guest take besides flags.
var dataOptions = map[string][]string{
	"tmpfs":  {"size", "nr_blocks", "nr_inodes", "mode", "uid", "gid", "huge", "mpol", "inode32", "inode64", "noswap"},
	"devpts": {"newinstance", "ptmxmode", "mode", "uid", "gid", "max"},
	"proc":   {"hidepid", "gid", "subset"},
	"ext4": {"acl", "auto_da_alloc", "barrier", "commit", "data", "delalloc", "discard", "errors", "grpid", "noacl",
		"nobarrier", "nodelalloc", "nodiscard", "nogrpid", "noload", "stripe", "user_xattr"},
}

// CheckMount names an option that the guest does not make.
func CheckMount(m Mount) error {
	o, err := m.options()
	if err != nil {
		return err
	}
	if !slices.Contains(mountable, m.Type) {
		return fmt.Errorf("mount %s: type %q in a guest: %w", m.Target, m.Type, errdefs.ErrNotImplemented)
	}
	for _, s := range o.data {
		name, _, _ := strings.Cut(s, "=")
		if !slices.Contains(dataOptions[m.Type], name) {
			return invalid("mount "+m.Target, "unknown option %q of a %s", s, m.Type)
		}
	}
	return nil
}

// superOptions belong to a whole file system; a mount within one cannot have them.
var superOptions = []string{"sync", "dirsync", "mand", "lazytime"}

// PlainOptions answers the options of a mount below which nothing is mounted when it is made, as a new file system or a
// copy: an option that acts on the mounts below as well is the one without its first letter.
func PlainOptions(given []string) []string {
	plain := slices.Clone(given)
	for i, s := range plain {
		if recursive[s] {
			plain[i] = s[1:]
		}
	}
	return plain
}

// CopyOptions answers with which options a bind mount that is copied in becomes a mount
// of its own; none: it need not be one.
func CopyOptions(target string, given []string) (kept []string, readOnly bool, err error) {
	for _, s := range PlainOptions(given) {
		if slices.Contains(superOptions, s) {
			return nil, false, fmt.Errorf("mount %s: option %q cannot be given to a copy in the guest: leave it out: %w", target,
				s, errdefs.ErrNotImplemented)
		}
		if s != "bind" && s != "rbind" {
			kept = append(kept, s)
		}
	}
	o, err := (&Mount{Target: target, Options: kept}).options()
	if err != nil {
		return nil, false, err
	}
	if len(o.data) > 0 {
		return nil, false, invalid("mount "+target, "unknown option %q of a bind mount", o.data[0])
	}
	private := !slices.ContainsFunc(o.propagation, func(p string) bool { return p != "private" && p != "rprivate" })
	if o.flags == 0 && private {
		return nil, false, nil
	}
	return kept, o.flags&unix.MS_RDONLY != 0, nil
}
