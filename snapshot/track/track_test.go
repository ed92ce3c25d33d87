package track

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// RAM above the hole of 3 GiB is a second mapping. Other mappings of the file are not the VM's
// to write. Files of that number on other devices are not RAM.
func TestParseMaps(t *testing.T) {
	const maps = `55d0e0a00000-55d0e0a01000 r--p 00000000 fe:00 4242 /usr/bin/vmm
7f0000000000-7f00c0000000 rw-s 00000000 00:2f 4242                       /ram/x (deleted)
7f0100000000-7f0140000000 rw-s c0000000 00:2f 4242                       /ram/x (deleted)
7f0200000000-7f0200001000 r--s 00000000 00:2f 4242                       /ram/x (deleted)
7f0300000000-7f0300001000 rw-s 00000000 00:2f 4243                       /ram/y
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
`
	got, err := parseMaps(strings.NewReader(maps), "00:2f", 4242)
	want := []Region{{0x7f0000000000, 0, 3 << 30}, {0x7f0100000000, 3 << 30, 1 << 30}}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	private := strings.Replace(maps, "rw-s", "rw-p", 1)
	if _, err := parseMaps(strings.NewReader(private), "00:2f", 4242); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("private: %v", err)
	}
}

func TestRegionsWantAll(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "ram"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4 << 12); err != nil {
		t.Fatal(err)
	}
	if _, err := Regions(os.Getpid(), f); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("nothing is mapped: %v", err)
	}
	low, err := unix.Mmap(int(f.Fd()), 0, 2<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(low)
	if _, err := Regions(os.Getpid(), f); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a half is mapped: %v", err)
	}
	high, err := unix.Mmap(int(f.Fd()), 2<<12, 2<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(high)
	regions, err := Regions(os.Getpid(), f)
	var total int64
	for _, r := range regions {
		total += r.Length
	}
	if err != nil || total != 4<<12 {
		t.Errorf("got %+v, %v", regions, err)
	}
}

// Soft-dirty: only present pages whose bit is not set are known to be as they were.
func TestDirtyRuns(t *testing.T) {
	var entries []byte
	for _, e := range []uint64{pagemapPresent, pagemapPresent | pagemapDirty, 0, pagemapPresent,
		pagemapDirty | pagemapPresent} {
		entries = binary.LittleEndian.AppendUint64(entries, e)
	}
	var got [][2]int64
	dirtyRuns(entries, 1<<20, func(offset, end int64) { got = append(got, [2]int64{offset, end}) })
	want := [][2]int64{{1<<20 + 4096, 1<<20 + 3*4096}, {1<<20 + 4*4096, 1<<20 + 5*4096}}
	if !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The order of soft-dirty: clear at each beginning, read at the end without clearing.
func TestSoftDirtyOrder(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	pagemap, clear, vmstat := open("pagemap"), open("clear_refs"), open("vmstat")
	count := func(text string) {
		if err := os.WriteFile(vmstat.Name(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	count("nr_dirty 4\npswpout 7\n")
	entries := binary.LittleEndian.AppendUint64(nil, pagemapPresent|pagemapDirty)
	entries = binary.LittleEndian.AppendUint64(entries, pagemapPresent)
	if _, err := pagemap.WriteAt(entries, 5*pagemapEntry); err != nil {
		t.Fatal(err)
	}
	s, err := New(SoftDirty, []Region{{Address: 5 * pageSize, Offset: 0, Length: 2 * pageSize}},
		Files{Pagemap: pagemap, Clear: clear, Vmstat: vmstat})
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		last, known bool
		pages       int64
		cleared     string
	}{{false, false, 0, "4"}, {false, false, 0, "44"}, {true, true, 1, "44"}, {true, true, 1, "44"}} {
		var pages int64
		known, err := s.Next(step.last, func(offset, end int64) { pages += (end - offset) / pageSize })
		cleared, _ := os.ReadFile(clear.Name())
		if err != nil || known != step.known || pages != step.pages || string(cleared) != step.cleared {
			t.Errorf("step %d: known %v, %d pages, cleared %q, %v", i, known, pages, cleared, err)
		}
	}
	none := func(int64, int64) {}
	for _, text := range []string{"pswpout 8\n", "pswpout 7\nzswpout 1\n", "nr_dirty 4\n", ""} {
		count("nr_dirty 4\npswpout 7\n")
		if known, err := s.Next(false, none); known || err != nil {
			t.Fatal(known, err)
		}
		count(text)
		if known, err := s.Next(true, none); known || err != nil {
			t.Errorf("a page may have lost its bit (%q): known %v, %v", text, known, err)
		}
	}
	// A huge page that became one of small ones is of a tmpfs only where a tmpfs has one, or had one.
	const host = "pswpout 7\nthp_split_page 1\n"
	for text, want := range map[string]bool{
		host + "thp_collapse_alloc 3\nnr_shmem_hugepages 0\n":                       true,
		host + "thp_collapse_alloc 3\nnr_shmem_hugepages 1\n":                       false,
		host + "thp_collapse_alloc 3\n":                                             false,
		"pswpout 7\nthp_split_page 2\nthp_collapse_alloc 3\nnr_shmem_hugepages 0\n": false,
		host + "thp_collapse_alloc 2\nnr_shmem_hugepages 0\nthp_file_alloc 1\n":     false,
	} {
		count(host + "thp_collapse_alloc 2\nnr_shmem_hugepages 0\n")
		if known, err := s.Next(false, none); known || err != nil {
			t.Fatal(known, err)
		}
		count(text)
		if known, err := s.Next(true, none); known != want || err != nil {
			t.Errorf("%q: known %v, %v", text, known, err)
		}
	}
	count("pswpout many\n")
	if known, err := s.Next(false, none); known || err == nil {
		t.Errorf("counters that cannot be read: known %v, %v", known, err)
	}
	blind := &softDirty{regions: s.(*softDirty).regions, files: Files{Pagemap: pagemap, Clear: clear}}
	for _, last := range []bool{false, true} {
		if known, err := blind.Next(last, none); known || err != nil {
			t.Errorf("without the counters: known %v, %v", known, err)
		}
	}
}

func TestNewWantsFiles(t *testing.T) {
	for _, way := range []Way{UFFD, SoftDirty, "other"} {
		if _, err := New(way, nil, Files{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s without files: %v", way, err)
		}
	}
	c, err := New(Content, nil, Files{})
	if err != nil {
		t.Fatal(err)
	}
	if known, err := c.Next(true, nil); known || err != nil || c.Stop() != nil {
		t.Errorf("content knows %v, %v", known, err)
	}
	if _, err := Open(UFFD, os.Getpid(), 0); !errdefs.IsNotFound(err) {
		t.Errorf("no descriptor: %v", err)
	}
	if _, err := Open(UFFD, os.Getpid(), 1); !errdefs.IsNotFound(err) {
		t.Errorf("another descriptor: %v", err)
	}
}
