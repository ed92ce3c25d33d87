package tool

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/guesttool"
)

// ticks is USER_HZ, which Linux shows as 100 on every architecture.
const ticks = 100

// syncfs flushes the file system of an open file.
func syncfs(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("flush the file system: %w", err)
	}
	return nil
}

// top lists the processes of the container, by pid, without this one.
func top() ([]guesttool.Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: the container has no /proc: %w", err)
	}
	boot, err := bootTime()
	if err != nil {
		return nil, err
	}
	names := userNames()
	all := []guesttool.Process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := process(pid, boot)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has ended meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read process %d: %w", pid, err)
		}
		if p.User = names[p.UID]; p.User == "" {
			p.User = strconv.Itoa(p.UID)
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b guesttool.Process) int { return a.PID - b.PID })
	return all, nil
}

// bootTime is when the guest's clock of /proc/PID/stat began, in Unix seconds.
func bootTime() (int64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the time of the boot: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
		}
	}
	return 0, fmt.Errorf("read the time of the boot: /proc/stat has none")
}

func process(pid int, boot int64) (guesttool.Process, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	var owner unix.Stat_t
	if err := unix.Stat(dir, &owner); err != nil {
		return guesttool.Process{}, err
	}
	data, err := os.ReadFile(dir + "stat")
	if err != nil {
		return guesttool.Process{}, err
	}
	p, err := parseStat(string(data), boot)
	if err != nil {
		return p, err
	}
	p.PID, p.UID = pid, int(owner.Uid)
	if line, err := os.ReadFile(dir + "cmdline"); err == nil && len(line) > 0 {
		p.Command = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	}
	return p, nil
}

// parseStat reads a line of /proc/PID/stat (proc(5)). The name in it may hold anything, so that
// the last parenthesis ends it.
func parseStat(line string, boot int64) (p guesttool.Process, err error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return p, fmt.Errorf("stat has no name")
	}
	p.Command = "[" + line[open+1:end] + "]"
	f := strings.Fields(line[end+1:])
	const state, parent, utime, stime, start, resident = 0, 1, 11, 12, 19, 21
	if len(f) <= resident {
		return p, fmt.Errorf("stat has %d fields after the name", len(f))
	}
	n := map[int]int64{}
	for _, i := range []int{parent, utime, stime, start, resident} {
		if n[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return p, fmt.Errorf("field %d of stat: %w", i, err)
		}
	}
	p.State, p.Parent = f[state], int(n[parent])
	p.CPU = (n[utime] + n[stime]) * 1000 / ticks
	p.Started = boot + n[start]/ticks
	p.Memory = uint64(max(0, n[resident])) * uint64(os.Getpagesize())
	return p, nil
}

// userNames are those of the image's passwd; it may have none.
func userNames() map[int]string { return namesIn("/etc/passwd") }

func namesIn(passwd string) map[int]string {
	names := map[int]string{}
	file := database(passwd)
	defer file.Close()
	users, _ := user.ParsePasswd(file)
	for _, u := range slices.Backward(users) { // the first of an id counts
		names[u.Uid] = u.Name
	}
	return names
}
