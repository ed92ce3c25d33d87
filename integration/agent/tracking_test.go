//go:build integration

package agent

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/snapshot/track"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/vmmtest"
)

const (
	pageSize = 4096
	// above the hole below 4 GiB, where a VM's RAM has a second part
	highMemory = 4 << 30
)

// load writes memory and a disk, reads the disk into memory, past the guest's cache too, and
// fills memory that the host may take away.
const load = `n=0; while n=$((n+1)); do
dd if=/dev/urandom of=/data/f bs=64k count=16 conv=fsync
dd if=/data/f of=/tmp/g bs=64k iflag=direct
dd if=/tmp/g of=/dev/shm/h bs=64k
yes "` + free + ` $n" | dd of=/dev/shm/free bs=64k count=32 iflag=fullblock conv=notrunc
done 2>/dev/null`

// free is in every page whose content the guest can do without.
const free = "nothing of value"

// What a tracker tells of a real VM is what has changed: each page whose content is another than
// before the interval. That holds with buffered disk IO, with RAM above 3 GiB, and for pages
// that the host has taken away, as for a balloon. It also holds where the notes were read in
// between while the VM ran.
func TestTracking(t *testing.T) {
	m := newTracked(t)
	tracker := m.tracker(t, track.UFFD)
	for round := range 3 {
		m.interval(t, tracker, round)
	}
	m.interval(t, &later{Tracker: tracker, machine: m, t: t}, 3)
	p := m.vm.Process()
	if err := track.Release(p.PID, p.Userfault, m.ram); err != nil {
		t.Error(err)
	}
	m.resume()
	if _, err := tracker.Next(false, func(int64, int64) {}); err == nil {
		t.Error("RAM that was released is still tracked")
	}
}

// later is a tracker that comes when the notes have been begun without it, as of a VM that woke.
type later struct {
	track.Tracker
	*machine
	t     *testing.T
	armed bool
}

func (l *later) Next(last bool, written func(offset, end int64)) (bool, error) {
	if l.armed {
		return l.Tracker.Next(last, written)
	}
	l.armed = true
	p := l.vm.Process()
	if err := track.Release(p.PID, p.Userfault, l.ram); err != nil {
		return false, err
	}
	if err := track.Arm(p.PID, p.Userfault, l.ram); err != nil {
		return false, err
	}
	l.Tracker = l.open(l.t, track.UFFD, track.Continue)
	return false, nil
}

// newTracked boots a VM whose VMM is a user of its own, under load.
func newTracked(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.memory, m.track = highMemory, vmm.TrackWrites
	if err := m.ram.Truncate(highMemory); err != nil {
		t.Fatal(err)
	}
	if err := m.ram.Chown(vmmtest.FirstUser, -1); err != nil {
		t.Fatal(err)
	}
	m.boot().setup(nil)
	if err := m.start("", process("sh", "-c", load)); err != nil {
		t.Fatal(err)
	}
	m.buffered(t, m.vm.Process().PID)
	return m
}

func (m *machine) tracker(t *testing.T, way track.Way) track.Tracker {
	return m.open(t, way, track.New)
}

func (m *machine) open(t *testing.T, way track.Way, open func(track.Way, []track.Region, track.Files) (track.Tracker,
	error)) track.Tracker {
	t.Helper()
	p := m.vm.Process()
	files, err := track.Open(way, p.PID, p.Userfault)
	if err != nil {
		t.Fatalf("this test needs Linux 6.7 and root: %v", err)
	}
	t.Cleanup(files.Close)
	regions, err := track.Regions(p.PID, m.ram)
	if err != nil {
		t.Fatal(err)
	}
	files.RAM = m.ram
	tracker, err := open(way, regions, files)
	if err != nil {
		t.Fatal(err)
	}
	return tracker
}

// notes are the pages that a tracker has told of.
type notes map[int64]bool

func (n notes) add(offset, end int64) {
	for ; offset < end; offset += pageSize {
		n[offset/pageSize] = true
	}
}

// interval compares what was told of one with what has changed in it. A tracker that knows
// nothing before the last look is begun while the VM runs. Its pages are read after that, as a
// capture does.
func (m *machine) interval(t *testing.T, tracker track.Tracker, round int) {
	t.Helper()
	told := notes{}
	if tracker.Between() {
		m.pause()
	}
	host := hostCounters(t)
	if _, err := tracker.Next(false, told.add); err != nil {
		t.Fatal(err)
	}
	clear(told)
	before := sums(t, m.ram)
	m.resume()
	taken := m.takeAway(t)
	for looks := range 3 {
		if tracker.Between() {
			if known, err := tracker.Next(false, told.add); err != nil || !known {
				t.Fatalf("known %v, %v", known, err)
			}
		}
		m.reach(t, "the guest fills its memory again", func() bool { return m.filled(taken) >= 20*(looks+1) })
	}
	m.pause()
	if known, err := tracker.Next(true, told.add); err != nil || !known {
		t.Fatalf("known %v, %v; pages that the host took back or made huge since:%s", known, err, moved(t, host))
	}
	after := sums(t, m.ram)
	m.compare(t, round, before, after, told, taken)
	m.resume()
}

// hostCounters are those of the kernel, by name.
func hostCounters(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = value
	}
	return all
}

// moved lists the counters of reclaim and of huge pages that are others now.
func moved(t *testing.T, before map[string]string) (out string) {
	t.Helper()
	for name, value := range hostCounters(t) {
		for _, prefix := range []string{"pgscan", "pswp", "zswp", "thp", "nr_shmem", "nr_file_hugepages"} {
			if strings.HasPrefix(name, prefix) && before[name] != value {
				out += fmt.Sprintf(" %s %s to %s", name, before[name], value)
			}
		}
	}
	return out
}

// compare wants that no page was missed. One that was taken away and only read is zeros.
func (m *machine) compare(t *testing.T, round int, before, after pages, told notes, taken map[int64]bool) {
	t.Helper()
	changed, missed, flagged, again := 0, 0, 0, 0
	zero := xxh3.Hash128(make([]byte, pageSize))
	for page, now := range after {
		if told[page] {
			flagged++
		}
		if before[page] == now || taken[page] && now == zero {
			continue
		}
		if taken[page] {
			again++
		}
		if changed++; !told[page] {
			missed++
		}
	}
	t.Logf("round %d: %d pages in use, %d changed, %d told; %d were taken away, %d of them filled again", round,
		len(after), changed, flagged, len(taken), again)
	if missed > 0 || changed < 100 {
		t.Errorf("round %d: of %d pages that changed %d were not told", round, changed, missed)
	}
	if flagged > len(after)/2 {
		t.Errorf("round %d: %d of %d pages were told", round, flagged, len(after))
	}
	if again == 0 {
		t.Errorf("round %d: of %d pages that were taken away none was filled again", round, len(taken))
	}
}

// takeAway punches holes where the guest has what it can do without. It stands still: a page
// that it needed no more when it was looked at may be needed again soon.
func (m *machine) takeAway(t *testing.T) map[int64]bool {
	t.Helper()
	var all []int64
	m.reach(t, "the guest has memory that it can do without", func() bool {
		if len(m.free(t)) < 100 { // without stopping it
			return false
		}
		m.pause()
		if all = m.free(t); len(all) < 100 {
			m.resume()
		}
		return len(all) >= 100
	})
	taken := map[int64]bool{}
	for _, page := range all {
		if err := unix.Fallocate(int(m.ram.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*pageSize,
			pageSize); err != nil {
			t.Fatal(err)
		}
		taken[page] = true
	}
	m.resume()
	return taken
}

// filled is how many of the holes the guest has filled.
func (m *machine) filled(taken map[int64]bool) (n int) {
	for page := range taken {
		if at, err := unix.Seek(int(m.ram.Fd()), page*pageSize, unix.SEEK_DATA); err == nil && at == page*pageSize {
			n++
		}
	}
	return n
}

// reach leaves the guest time between two looks, which read all of its RAM.
func (m *machine) reach(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Slow(2*time.Minute))
	defer cancel()
	for !ok() {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			t.Fatalf("wait until %s: %v", what, ctx.Err())
		}
	}
}

func (m *machine) pause() {
	m.t.Helper()
	if err := m.vm.Pause(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// pages are the sums of those that have data.
type pages map[int64]xxh3.Uint128

func sums(t *testing.T, f *os.File) pages {
	t.Helper()
	all := pages{}
	each(t, f, func(page int64, data []byte) { all[page] = xxh3.Hash128(data) })
	return all
}

// free are the pages that the guest can do without.
func (m *machine) free(t *testing.T) (all []int64) {
	t.Helper()
	const line = 3 * len(free)
	word := []byte(free)
	each(t, m.ram, func(page int64, data []byte) {
		if bytes.Contains(data[:line], word) && bytes.Contains(data[pageSize-line:], word) {
			all = append(all, page)
		}
	})
	return all
}

// each calls do for every page that has data.
func each(t *testing.T, f *os.File, do func(page int64, data []byte)) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			return // ENXIO: no more
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		for at = data; at < hole; {
			n, err := f.ReadAt(buf[:min(int64(len(buf)), hole-at)], at)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < n; i += pageSize {
				do((at+int64(i))/pageSize, buf[i:i+pageSize])
			}
			at += int64(n)
		}
	}
}

// buffered wants that the VMM has no disk open with O_DIRECT, which no tracker sees.
func (m *machine) buffered(t *testing.T, pid int) {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	disks := 0
	for _, fd := range fds {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if !strings.HasPrefix(path, m.dir) || filepath.Ext(path) != ".ext4" && filepath.Ext(path) != ".erofs" {
			continue
		}
		disks++
		info, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			t.Fatal(err)
		}
		defer info.Close()
		for lines := bufio.NewScanner(info); lines.Scan(); {
			if flags, ok := strings.CutPrefix(lines.Text(), "flags:"); ok {
				if n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64); err != nil || n&unix.O_DIRECT != 0 {
					t.Errorf("%s is open with flags %s", path, flags)
				}
			}
		}
	}
	if disks < 2 {
		t.Errorf("%d disks are open", disks)
	}
}
