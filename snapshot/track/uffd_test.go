package track

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What RAM has no data for is neither protected nor told of, whichever pages come there: those
// are told of when they have come, and again when they are written to again.
func TestHolesAreNotProtected(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a userfaultfd that sees what the kernel writes is root's")
	}
	const tables, perTable = 8, tableSpan / pageSize
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	ram := os.NewFile(uintptr(fd), "ram")
	defer ram.Close()
	if err := ram.Truncate(tables * tableSpan); err != nil {
		t.Fatal(err)
	}
	// Aligned as a VMM's RAM is: a table of its process is one of the file.
	area, err := unix.Mmap(-1, 0, (tables+1)*tableSpan, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(area)
	mem := mapAt(t, ram, area)
	for page := range 4 {
		mem[page*pageSize] = 1
		mem[(5*perTable+page)*pageSize] = 1
	}
	tracker := inProcess(t, ram)
	told := func() (pages []int) {
		t.Helper()
		known, err := tracker.Next(false, func(offset, end int64) {
			for ; offset < end; offset += pageSize {
				pages = append(pages, int(offset/pageSize))
			}
		})
		if err != nil || !known && pages != nil {
			t.Fatal(known, err)
		}
		return pages
	}
	told() // begins
	if got := told(); len(got) > 0 {
		t.Errorf("nothing was written, %d pages are told: %v", len(got), got[:min(len(got), 9)])
	}
	const old, fresh = 2, 3*perTable + 7
	for range 2 {
		mem[old*pageSize]++
		mem[fresh*pageSize]++
		got := told()
		for _, page := range got {
			if page != old && page/perTable != fresh/perTable { // what shares a new table may be told once
				t.Errorf("page %d is told", page)
			}
		}
		if !slices.Contains(got, old) || !slices.Contains(got, fresh) {
			t.Errorf("pages %d and %d were written, told are %d: %v", old, fresh, len(got), got[:min(len(got), 9)])
		}
	}
	if got := told(); len(got) > 0 {
		t.Errorf("nothing was written any more, %d pages are told", len(got))
	}
}

// mapAt maps a file at an address in area that is a multiple of a table's span.
func mapAt(t *testing.T, f *os.File, area []byte) []byte {
	t.Helper()
	base := uintptr(unsafe.Pointer(&area[0]))
	skip := (tableSpan - base%tableSpan) % tableSpan
	size := len(area) - tableSpan
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, base+skip, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED, f.Fd(), 0)
	if errno != 0 || got != base+skip {
		t.Fatal(errno)
	}
	return area[skip:][:size]
}

// inProcess tracks what this process writes.
func inProcess(t *testing.T, ram *os.File) Tracker {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	fault := os.NewFile(fd, "userfaultfd")
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	regions, err := Regions(os.Getpid(), ram)
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := New(UFFD, regions, Files{Fault: fault, Pagemap: pagemap, RAM: ram})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tracker.Stop(); fault.Close(); pagemap.Close() })
	return tracker
}
