package stage

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Forkable reports whether the fork server can start a process: what it lacks, a stage has. A process
// whose capabilities are not named has all of them, and may trace.
func Forkable(p *specs.Process) bool {
	return forkable && !p.Terminal && p.Capabilities != nil && len(p.Args) > 0
}

// plan is what assume, confine and exec do. fds are those of a request. outside says that root may not
// enter the working directory.
func (id *identity) plan(fds []int, proc int, outside bool) (*plan, error) {
	p, spec := new(plan), id.spec
	p.do(unix.SYS_SETSID)
	users := -1
	if len(fds) > forkUsers {
		users = fds[forkUsers]
	}
	p.streams(fds[:3], proc, users, spec.OOMScoreAdj)
	for _, r := range limits(spec) {
		p.do(unix.SYS_PRLIMIT64, 0, uintptr(rlimits[r.Type]), at(p, &unix.Rlimit{Cur: r.Soft, Max: r.Hard}))
	}
	if id.persona != 0 {
		p.do(unix.SYS_PERSONALITY, uintptr(id.persona))
	}
	p.enterUser(users)
	if err := id.planUser(p); err != nil {
		return nil, err
	}
	if outside {
		p.do(unix.SYS_CHDIR, p.text(spec.Cwd))
	}
	if spec.User.Umask != nil {
		p.do(unix.SYS_UMASK, uintptr(*spec.User.Umask))
	}
	if spec.NoNewPrivileges {
		p.do(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	p.do(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, at(p, new(unix.Sigset_t)), 0, unsafe.Sizeof(uint64(0)))
	if err := id.planFilter(p); err != nil {
		return nil, err
	}
	return p, p.program(spec, id.env)
}

// streams puts the streams on 0, 1 and 2, sets the score, and closes all else but users, if that is one. It is still
// root.
func (p *plan) streams(fds []int, proc, users int, score *int) {
	for i, fd := range fds {
		p.do(unix.SYS_DUP3, uintptr(fd), uintptr(i), 0)
	}
	const first = 3
	file := uintptr(first + 1)
	if users == first+1 {
		file++
	}
	if score != nil {
		text := []byte(strconv.Itoa(*score))
		p.do(unix.SYS_DUP3, uintptr(proc), first, 0)
		p.closeFrom(first+1, users)
		p.do(unix.SYS_OPENAT, first, p.text("self/oom_score_adj"), unix.O_WRONLY) // is file: those above first are closed
		p.do(unix.SYS_WRITE, file, at(p, unsafe.SliceData(text)), uintptr(len(text)))
	}
	p.closeFrom(first, users)
}

// closeFrom closes the descriptors from first on, except one. That one is -1 for none.
func (p *plan) closeFrom(first, except int) {
	const last = ^uintptr(0) >> 32
	if except < 0 {
		p.do(unix.SYS_CLOSE_RANGE, uintptr(first), last, 0)
		return
	}
	if except > first {
		p.do(unix.SYS_CLOSE_RANGE, uintptr(first), uintptr(except-1), 0)
	}
	p.do(unix.SYS_CLOSE_RANGE, uintptr(except+1), last, 0)
}

// enterUser enters the user namespace, if there is one. What the guest's root alone may do is done.
func (p *plan) enterUser(users int) {
	if users < 0 {
		return
	}
	p.do(unix.SYS_SETNS, uintptr(users), unix.CLONE_NEWUSER)
	p.do(unix.SYS_CLOSE, uintptr(users))
}

// planUser is dropBounding and switchUser.
func (id *identity) planUser(p *plan) error {
	last, err := capability.LastCap()
	if err != nil {
		return fmt.Errorf("find last capability: %w", err)
	}
	keep := make(map[capability.Cap]bool)
	for _, c := range id.caps[3] {
		keep[c] = true
	}
	for c := capability.Cap(0); c <= last; c++ {
		if !keep[c] {
			p.do(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		}
	}
	if id.final, err = id.capabilities(); err != nil {
		return err
	}
	u, data := id.spec.User, id.final
	if id.needsFilterCapability() {
		data[0].Effective |= 1 << unix.CAP_SYS_ADMIN
		data[0].Permitted |= 1 << unix.CAP_SYS_ADMIN
	}
	p.do(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	groups := append([]uint32{0}, u.AdditionalGids...) // never empty: it has an address
	p.do(unix.SYS_SETGROUPS, uintptr(len(u.AdditionalGids)), at(p, unsafe.SliceData(groups))+unsafe.Sizeof(groups[0]))
	p.do(unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID))
	p.do(unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID))
	p.do(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 0, 0, 0, 0)
	p.capset(data)
	for _, c := range id.caps[4] {
		p.do(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0)
	}
	return nil
}

func (p *plan) capset(data [2]unix.CapUserData) {
	p.do(unix.SYS_CAPSET, at(p, &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}), at(p, &data[0]))
}

// planFilter is confine.
func (id *identity) planFilter(p *plan) error {
	if id.filter == nil {
		return nil
	}
	prog, err := id.filter.prog()
	if err != nil {
		return err
	}
	at(p, prog.Filter)
	p.do(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(id.filter.Flags), at(p, prog))
	if id.needsFilterCapability() {
		p.capset(id.final)
	}
	return nil
}

// program executes the first of the names in PATH that the user may execute, as lookPath does.
func (p *plan) program(spec *specs.Process, env []string) error {
	name, argv, envp := spec.Args[0], p.texts(spec.Args), p.texts(env)
	if strings.Contains(name, "/") {
		p.do(unix.SYS_EXECVE, p.text(name), argv, envp)
		return nil
	}
	path := ""
	for _, kv := range spec.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	here := unix.AT_FDCWD
	for _, dir := range filepath.SplitList(path) {
		file := p.text(filepath.Join(dir, name))
		p.try(2, unix.SYS_FACCESSAT, uintptr(here), file, unix.X_OK)
		p.do(unix.SYS_EXECVE, file, argv, envp)
	}
	if path == "" {
		return fmt.Errorf("%q: no PATH: %w", name, errdefs.ErrNotFound)
	}
	p.do(unix.SYS_EXIT_GROUP, 127) // nothing was found
	return nil
}
