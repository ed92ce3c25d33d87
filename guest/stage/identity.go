package stage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/guest/stage/inroot"
)

// identity is who the process is, prepared while we are still root.
type identity struct {
	spec    *specs.Process
	filter  *Seccomp
	persona uint64
	limited bool // the agent sets the limits: only the guest's root may raise them
	env     []string
	final   [2]unix.CapUserData // set once the process is its user
	caps    [5][]capability.Cap // effective, permitted, inheritable, bounding, ambient
}

func newIdentity(p *Process) (*identity, error) {
	id := &identity{spec: p.Spec, filter: p.Seccomp, persona: p.Personality, env: p.Spec.Env,
		limited: p.User != nil}
	var err error
	id.caps, err = readCapabilities(p.Spec.Capabilities)
	return id, err
}

// readCapabilities answers the five sets: effective, permitted, inheritable, bounding,
// ambient.
func readCapabilities(c *specs.LinuxCapabilities) (sets [5][]capability.Cap, err error) {
	if c == nil {
		return sets, nil
	}
	for i, names := range [][]string{c.Effective, c.Permitted, c.Inheritable, c.Bounding, c.Ambient} {
		for _, name := range names {
			v, err := parseCap(name)
			if err != nil {
				return sets, err
			}
			sets[i] = append(sets[i], v)
		}
	}
	return sets, nil
}

func parseCap(name string) (capability.Cap, error) {
	for _, c := range capability.ListKnown() {
		if strings.EqualFold(name, CapabilityName(c)) {
			return c, nil
		}
	}
	return 0, fmt.Errorf("process.capabilities: unknown %q: %w", name, errdefs.ErrInvalidArgument)
}

// CapabilityName is a capability's name in a process's spec.
func CapabilityName(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }

// assume gives up root. It uses raw system calls where Go's would act on all threads:
// only the one that execs counts.
func (id *identity) assume() error {
	p := id.spec
	if !id.limited {
		if err := SetLimits(0, p); err != nil {
			return err
		}
	}
	if err := id.personality(); err != nil {
		return err
	}
	if err := id.dropBounding(); err != nil {
		return err
	}
	// As root first: the user may not be allowed to enter, and after: only he may be.
	first := unix.Chdir(p.Cwd)
	if err := id.switchUser(); err != nil {
		return err
	}
	if first != nil {
		if err := unix.Chdir(p.Cwd); err != nil {
			return classify(fmt.Errorf("chdir to cwd (%q) set in config.json failed: %w", p.Cwd, err))
		}
	}
	if p.User.Umask != nil {
		unix.Umask(int(*p.User.Umask))
	}
	if p.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privileges: %w", err)
		}
	}
	return nil
}

// dropBounding drops from the bounding set what the process may never have.
func (id *identity) dropBounding() error {
	if id.spec.Capabilities == nil {
		return nil
	}
	last, err := capability.LastCap()
	if err != nil {
		return fmt.Errorf("find last capability: %w", err)
	}
	for c := capability.Cap(0); c <= last; c++ {
		keep := false
		for _, b := range id.caps[3] {
			keep = keep || b == c
		}
		if keep {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop %v from the bounding set: %w", c, err)
		}
	}
	return nil
}

// switchUser switches groups, user and capabilities.
func (id *identity) switchUser() error {
	u := id.spec.User
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err := setgroups(u.AdditionalGids); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID)); errno != 0 {
		return fmt.Errorf("set gid %d: %w", u.GID, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID)); errno != 0 {
		return fmt.Errorf("set uid %d: %w", u.UID, errno)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if id.spec.Capabilities == nil && !id.needsFilterCapability() {
		return nil
	}
	var err error
	if id.final, err = id.capabilities(); err != nil {
		return err
	}
	data := id.final
	if id.needsFilterCapability() {
		data[0].Effective |= 1 << unix.CAP_SYS_ADMIN
		data[0].Permitted |= 1 << unix.CAP_SYS_ADMIN
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	for _, c := range id.caps[4] {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise ambient capability %v: %w", c, err)
		}
	}
	return nil
}

// openFiles is what a process may have open whose spec says nothing of it: what service
// managers give. The kernel's own 4,096 are too few for servers.
var openFiles = specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 524288}

// SetLimits sets those of a process; pid 0 is the caller.
func SetLimits(pid int, p *specs.Process) error {
	for _, r := range limits(p) {
		if err := unix.Prlimit(pid, rlimits[r.Type], &unix.Rlimit{Cur: r.Soft, Max: r.Hard}, nil); err != nil {
			return fmt.Errorf("set %s: %w", r.Type, err)
		}
	}
	return nil
}

// limits of a process.
func limits(p *specs.Process) []specs.POSIXRlimit {
	if slices.ContainsFunc(p.Rlimits, func(r specs.POSIXRlimit) bool { return r.Type == openFiles.Type }) {
		return p.Rlimits
	}
	return append([]specs.POSIXRlimit{openFiles}, p.Rlimits...)
}

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU,
	"RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

// ensureCwd makes the working directory of a container's init.
func ensureCwd(cwd string, user *User) error {
	if user != nil {
		return ownCwd(cwd, user)
	}
	if err := os.MkdirAll(cwd, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make cwd: %w", err)
	}
	return nil
}

// ownCwd makes the directory one of the container's root.
func ownCwd(cwd string, user *User) error {
	root, err := inroot.Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	root.Own(user.Root())
	dir, err := root.MkdirAll(cwd)
	if err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("make cwd: %w", err)
	}
	if err == nil {
		dir.Close()
	}
	return nil
}

// lookPath finds the executable in the process's own PATH, as its own user.
func lookPath(p *specs.Process) (string, error) {
	os.Clearenv()
	for _, kv := range p.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			os.Setenv("PATH", v)
		}
	}
	path, err := exec.LookPath(p.Args[0])
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, exec.ErrDot):
		return "./" + path, nil
	}
	return "", classify(err)
}
