package worker

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"godwit.dev/godwit/snapshot/cache"
	"godwit.dev/godwit/snapshot/store"
)

// confine takes from this process what it does not need for the rest of its job, before it reads a byte that others
// made: its files are open, its credentials and keys read. What is left is the descriptors that it was given,
// connections to registries, the public files that these take, and the directories of layouts. It also has what the
// node keeps of this repository and, to read it, of golden snapshots. A parser that a snapshot has taken over reads
// no other file of the host and writes none. It reaches none of its programs and gets no right back.
//
// A kernel without landlock leaves the files in reach that root owns; the rest holds.
func confine(kept *cache.Dir, stores ...store.Config) error {
	var rules []landlock.Rule
	for _, dir := range []string{"/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
		"/run/systemd/resolve"} {
		rules = append(rules, landlock.RODirs(dir).IgnoreIfMissing())
	}
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/dev/null"} {
		rules = append(rules, landlock.ROFiles(file).IgnoreIfMissing())
	}
	if own, beside := kept.Paths(); own != "" {
		rules = append(rules, landlock.RWDirs(own))
		if beside != "" {
			rules = append(rules, landlock.RODirs(beside))
		}
	}
	for _, st := range stores {
		dir, ok := strings.CutPrefix(st.Repository, store.LayoutPrefix)
		if !ok {
			continue
		}
		// A layout may be made by this job.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("confine worker: %w", err)
		}
		rules = append(rules, landlock.RWDirs(dir).WithRefer())
	}
	if err := landlock.V5.BestEffort().RestrictPaths(rules...); err != nil {
		return fmt.Errorf("confine worker: %w", err)
	}
	if err := dropRights(); err != nil {
		return err
	}
	return forbid()
}

// dropRights gives up every capability, in all threads, with no way back.
func dropRights() error {
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("confine worker: no new privileges: %w", e)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, e := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none[0])), 0)
	if e != 0 {
		return fmt.Errorf("confine worker: capabilities: %w", e)
	}
	return nil
}
