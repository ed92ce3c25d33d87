package bench

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
)

// ownRAM answers a program that starts QEMU with memory of its own, as people do who know nothing of godwit. The driver
// gives it a file that is shared: of such a file QEMU's migration makes each page that the guest has not, before it
// finds out that it is empty.
func ownRAM(dir string, mib int) (string, error) {
	path := filepath.Join(dir, "qemu")
	script := fmt.Sprintf(`#!/bin/sh
own=
for word; do
	shift
	case $word in memory-backend-file,id=ram,*) own=memory-backend-ram,id=ram,size=%dM word=$own ;; esac
	set -- "$@" "$word"
done
[ "$own" ] || { echo 'no memory-backend-file,id=ram among the arguments' >&2; exit 1; }
exec qemu-system-x86_64 "$@"
`, mib)
	return path, os.WriteFile(path, []byte(script), 0o755)
}

// privateRAM answers how much of its memory for a guest of so many MiB a process has in use, in MiB.
func privateRAM(pid, size int) (float64, error) {
	path := fmt.Sprintf("/proc/%d/smaps", pid)
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var whole bool
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kib int
		text := lines.Text()
		if _, err := fmt.Sscanf(text, "Size: %d kB", &kib); err == nil {
			whole = kib == size<<10
		} else if _, err := fmt.Sscanf(text, "Rss: %d kB", &kib); err == nil && whole {
			return float64(kib) / 1024, nil
		}
	}
	return 0, fmt.Errorf("%s has no mapping of %d MiB: %w", path, size, lines.Err())
}
