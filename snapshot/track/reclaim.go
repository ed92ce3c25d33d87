package track

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// reclaimCounters are the events of /proc/vmstat after which a page of a tmpfs may have left a
// page table, and its soft-dirty bit with it: reclaim that looked at such pages, pages that went
// to swap, with compression or without, and small pages that became a huge one. A kernel has
// those that it was built with. Source: the enum vm_event_item of the kernel.
var reclaimCounters = []string{"pgscan_anon", "pswpout", "zswpout", "thp_file_alloc"}

// collapsed counts small pages that became a huge one, of a tmpfs or of any process. While no tmpfs has a huge page
// (hugeOnTmpfs), and none was split, it has counted those of processes.
const (
	collapsed   = "thp_collapse_alloc"
	split       = "thp_split_page"
	hugeOnTmpfs = "nr_shmem_hugepages"
)

// reclaim holds the counters; nil: they are not known.
type reclaim struct{ events, huge map[string]uint64 }

// readReclaim reads them from an open /proc/vmstat. Without the file they are not known.
func readReclaim(vmstat *os.File) (r reclaim, err error) {
	if vmstat == nil {
		return reclaim{}, nil
	}
	data, err := io.ReadAll(io.NewSectionReader(vmstat, 0, 1<<20))
	if err != nil {
		return reclaim{}, fmt.Errorf("read /proc/vmstat: %w", err)
	}
	r = reclaim{map[string]uint64{}, map[string]uint64{}}
	for line := range bytes.Lines(data) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		into := r.events
		switch {
		case slices.Contains([]string{collapsed, split, hugeOnTmpfs}, name):
			into = r.huge
		case !slices.Contains(reclaimCounters, name):
			continue
		}
		if into[name], err = strconv.ParseUint(value, 10, 64); err != nil {
			return reclaim{}, fmt.Errorf("read /proc/vmstat: line %q: %w", line, err)
		}
	}
	return r, nil
}

// none reports whether it is known that no page was taken back between r and after. Each kernel
// with swap has pswpout or pgscan_anon; without any counter nothing is known.
func (r reclaim) none(after reclaim) bool {
	return len(r.events) > 0 && maps.Equal(r.events, after.events) && r.keptSmall(after)
}

// keptSmall reports whether no small pages of a tmpfs became a huge one. A kernel without huge pages has no counter.
func (r reclaim) keptSmall(after reclaim) bool {
	if r.huge[collapsed] == after.huge[collapsed] {
		return true
	}
	_, told := r.huge[hugeOnTmpfs]
	left, still := after.huge[hugeOnTmpfs]
	return told && still && r.huge[hugeOnTmpfs] == 0 && left == 0 && r.huge[split] == after.huge[split]
}
