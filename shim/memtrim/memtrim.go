// Package memtrim gives memory back to the kernel that a program needed only to start. A shim
// and its sandbox process live as long as a VM and do little. Their start touches most of the
// program, because every package initializes something, and the kernel maps the pages around
// each one that is touched.
package memtrim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim collects the heap's garbage and unmaps what cannot be written of the program's own
// file. Those pages stay in the page cache, and each that is used again is mapped again
// without a read.
func Trim() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	var errs []error
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		m, ok := parse(lines.Text())
		if !ok || m.path != program || !m.clean {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, fmt.Errorf("give memory back: %w", errno))
		}
	}
	return errors.Join(errs...)
}

type mapping struct {
	start, end uintptr
	clean      bool // never written to: the file has it all
	path       string
}

// parse reads a line of /proc/PID/maps.
func parse(line string) (m mapping, ok bool) {
	var rights, offset, device string
	var inode uint64
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %d", &m.start, &m.end, &rights, &offset, &device, &inode)
	at := strings.IndexByte(line, '/')
	if n < 6 || inode == 0 || at < 0 {
		return m, false
	}
	m.clean = strings.HasPrefix(rights, "r") && !strings.Contains(rights, "w")
	m.path = line[at:]
	return m, true
}
