package track

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
)

// reclaimCounters are the events of /proc/vmstat after which a page of a tmpfs may have left a
// page table, and its soft-dirty bit with it: reclaim that looked at such pages, pages that went
// to swap, with compression or without, and small pages that became a huge one. A kernel has
// those that it was built with. Source: the enum vm_event_item of the kernel.
var reclaimCounters = []string{"pgscan_anon", "pswpout", "zswpout", "thp_collapse_alloc", "thp_file_alloc"}

// reclaim holds those counters; nil: they are not known.
type reclaim map[string]uint64

// readReclaim reads them from an open /proc/vmstat. Without the file they are not known.
func readReclaim(vmstat *os.File) (reclaim, error) {
	if vmstat == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.NewSectionReader(vmstat, 0, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read /proc/vmstat: %w", err)
	}
	counters := reclaim{}
	for line := range bytes.Lines(data) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		for _, c := range reclaimCounters {
			if string(name) != c {
				continue
			}
			if counters[c], err = strconv.ParseUint(string(value), 10, 64); err != nil {
				return nil, fmt.Errorf("read /proc/vmstat: line %q: %w", line, err)
			}
		}
	}
	return counters, nil
}

// none reports whether it is known that no page was taken back between r and after. Each kernel
// with swap has pswpout or pgscan_anon; without any counter nothing is known.
func (r reclaim) none(after reclaim) bool {
	return len(r) > 0 && maps.Equal(r, after)
}
