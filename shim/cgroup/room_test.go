package cgroup

import (
	"math"
	"path/filepath"
	"testing"
)

// TestRoom: the smallest limit of a cgroup and those above it counts, with both versions. What cannot be read is an
// error, and no limit is none.
func TestRoom(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, map[string]string{
		"two/cgroup.procs": "", "two/memory.max": "max\n", "two/pod/cgroup.procs": "", "two/pod/memory.max": "4096\n",
		"two/pod/task/cgroup.procs": "", "two/pod/task/memory.max": "8192\n", "two/free/memory.max": "max\n",
		"one/cgroup.procs": "", "one/memory.limit_in_bytes": "9223372036854771712\n", "one/pod/cgroup.procs": "",
		"one/pod/memory.limit_in_bytes": "4096\n", "one/pod/task/memory.limit_in_bytes": "9223372036854771712\n",
		"cpu/cgroup.procs": "", "cpu/pod/cgroup.procs": "", "bad/memory.max": "much\n",
	})
	for _, c := range []struct {
		dirs  []string
		limit uint64
		of    string
	}{
		{[]string{"two/pod/task"}, 4096, "two/pod"},
		{[]string{"two/free"}, math.MaxUint64, ""},
		{[]string{"cpu/pod", "one/pod/task"}, 4096, "one/pod"},
		{[]string{"cpu/pod"}, math.MaxUint64, ""},
	} {
		var dirs []string
		for _, d := range c.dirs {
			dirs = append(dirs, filepath.Join(root, d))
		}
		limit, of, err := Room(dirs)
		if of != "" {
			of, _ = filepath.Rel(root, of)
		}
		if limit != c.limit || of != c.of || err != nil {
			t.Errorf("%q: %d of %q, %v; want %d of %q", c.dirs, limit, of, err, c.limit, c.of)
		}
	}
	if _, _, err := Room([]string{filepath.Join(root, "bad")}); err == nil {
		t.Error("a limit that is no number is none")
	}
}
