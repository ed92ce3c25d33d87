//go:build integration

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/bpf"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/precopy"
	"godwit.dev/godwit/snapshot/store"
	"godwit.dev/godwit/vmm/vmmtest"
)

// diskLoad fills a part of the disk. Then it writes a little of it, trims some, and writes it again.
const diskLoad = `yes "the disk" | dd of=/data/much bs=64k count=768 iflag=fullblock conv=fsync
n=0; while n=$((n+1)); do
dd if=/dev/urandom of=/data/much bs=4k count=4 seek=$((n*37%3000)) conv=notrunc,fsync
dd if=/dev/urandom of=/data/new bs=16k count=3 conv=fsync
rm /data/new
done 2>/dev/null`

// diskSnapshots are checkpoints of a VM, with a disk on ext4.
type diskSnapshots struct {
	*machine
	t      *testing.T
	store  store.Store
	disk   *os.File
	notes  *bpf.FileNotes
	settle bool
	paused pages // what the disk was in the last pause
}

// deafNotes hear of no write.
type deafNotes struct{ precopy.WriteNotes }

func (deafNotes) Take(func(offset, end int64)) {}

// TestDiskNotes: the kernel notes what a real VM writes to a disk on ext4. So the pause of a snapshot reads no more
// of it. Each page of each of them is what the disk was in its pause, under a guest that writes all the time.
// Notes that are not settled are not believed. With notes that lack the writes the comparison fails: it can.
func TestDiskNotes(t *testing.T) {
	if err := bpf.NotesFiles(); err != nil { // there each pause reads the whole disk, as tests of snapshots show
		t.Log(err)
		return
	}
	m := newMachine(t)
	s := &diskSnapshots{machine: m, t: t, disk: m.onExt4(t)}
	layout, err := store.NewLayout(filepath.Join(t.TempDir(), "layout", "uid1"))
	if err != nil {
		t.Fatal(err)
	}
	s.store = layout
	m.boot().setup(nil)
	if err := m.start("", process("sh", "-c", diskLoad)); err != nil {
		t.Fatal(err)
	}
	m.buffered(t, m.vm.Process().PID)
	for at := time.Now(); allocated(t, s.disk) < 48<<20; time.Sleep(time.Second) {
		if time.Since(at) > harness.Slow(2*time.Minute) {
			t.Fatal("the guest does not fill its disk")
		}
	}
	whole, n := s.take("whole", nil)
	s.wants("whole", n, 0)
	if whole < 32<<20 {
		t.Errorf("a disk without notes was not read in the pause: %d bytes", whole)
	}
	rounds := 4
	if harness.Nested() { // where hashing alone takes minutes
		rounds = 2
	}
	for round := range rounds {
		s.settle = true
		noted, n := s.take(fmt.Sprintf("noted%d", round), func(n precopy.WriteNotes) precopy.WriteNotes { return n })
		s.wants("noted", n, 0)
		if noted > whole/4 {
			t.Errorf("the pause has read %d bytes, the whole disk is %d", noted, whole)
		}
	}
	s.settle = false
	unsettled, n := s.take("unsettled", func(n precopy.WriteNotes) precopy.WriteNotes { return n })
	s.wants("unsettled", n, 0)
	if unsettled < whole/4*3 {
		t.Errorf("the pause has read %d bytes by notes that were not settled, the whole disk is %d", unsettled, whole)
	}
	s.settle = true
	if _, n := s.take("deaf", func(n precopy.WriteNotes) precopy.WriteNotes { return deafNotes{n} }); n == 0 {
		t.Error("a snapshot by notes that lack the writes is right: the test shows nothing")
	}
}

func (s *diskSnapshots) wants(what string, differ, want int) {
	s.t.Helper()
	if differ != want {
		s.t.Errorf("%s: %d of %d pages differ", what, differ, len(s.paused))
	}
}

func allocated(t *testing.T, f *os.File) int64 {
	t.Helper()
	var bytes int64
	if err := precopy.Extents(f, 1<<40, func(offset, end int64) error { bytes += end - offset; return nil }); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// onExt4 moves the disk of the VM to a file system of its own, before the VM is started.
func (m *machine) onExt4(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(m.dir, "mnt")
	run(t, "truncate", "-s", "1G", image)
	run(t, "mkfs.ext4", "-q", image)
	run(t, "mkdir", at)
	run(t, "mount", "-o", "loop", image, at)
	t.Cleanup(func() { run(t, "umount", "-l", at) })
	path := filepath.Join(at, "rw")
	last := &m.disks[len(m.disks)-1]
	writable(t, path)
	last.File.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = f.Chown(vmmtest.FirstUser, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
	last.File = f
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return reader
}

// take makes a checkpoint, and answers how much of the disk its pause has read, and how many pages differ.
func (s *diskSnapshots) take(operation string, by func(precopy.WriteNotes) precopy.WriteNotes) (read uint64, n int) {
	s.t.Helper()
	time.Sleep(harness.Slow(time.Second)) // in which the guest writes
	dir := filepath.Join(s.dir, operation)
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	disk := snapshot.Space{Name: "disk0", Disk: "rw", File: s.disk}
	if s.notes = nil; by != nil {
		s.note(&disk, by)
	}
	state := create(s.t, dir, "state")
	if err := os.WriteFile(state.Name(), []byte("state"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	info, err := s.disk.Stat()
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := snapshot.Push(s.t.Context(), s.store, snapshot.Source{State: state,
		Spaces: []snapshot.Space{{Name: "ram0", File: s.ram}, disk}}, snapshot.Options{
		Ref: snapshot.Ref{VM: "default/vm1", UID: "uid1", Operation: operation, Attempt: 1, Generation: 1},
		Spec: &spec.Spec{Version: 1, Namespace: "default", ID: "vm1", UID: "uid1", Memory: s.memory, VCPUs: 1,
			VMM: spec.VMM{Name: "qemu"}, Disks: []spec.Disk{{ID: "rw", Size: info.Size()}}},
		Facts: snapshot.Facts{VMM: "qemu", Version: "10.0", Kernel: "6.18"},
		Live:  s, Captured: s.goOn, Budget: time.Second, Repository: "repo/uid1",
	})
	if err != nil {
		s.t.Fatalf("%s: %v", operation, err)
	}
	for _, d := range r.Disks {
		read += d.Read
	}
	s.t.Logf("%s: the pause has read %d bytes of the disk; %d passes, the last one took %.1f ms", operation, read,
		len(r.Passes), r.Passes[len(r.Passes)-1].MS)
	return read, s.differ(r, create(s.t, s.t.TempDir(), "disk"), create(s.t, dir, "ram"))
}

// note begins notes, as a shim does before it starts a worker.
func (s *diskSnapshots) note(disk *snapshot.Space, by func(precopy.WriteNotes) precopy.WriteNotes) {
	s.t.Helper()
	writers, err := bpf.Writers(s.vm.Process().PID, s.disk)
	if err == nil {
		s.notes, err = bpf.NoteFile(s.t.Context(), s.disk, writers)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.notes.Close() })
	info, err := s.disk.Stat()
	if err != nil {
		s.t.Fatal(err)
	}
	noted, err := bpf.OpenNoted(s.notes.Map, info.Size())
	if err != nil {
		s.t.Fatal(err)
	}
	disk.Notes = by(noted)
}

// differ counts the pages of the disk that are not what they were in the pause.
func (s *diskSnapshots) differ(r snapshot.Receipt, disk, ram *os.File) int {
	s.t.Helper()
	snap, err := snapshot.OpenWith(s.t.Context(), s.store, r.Digest, nil, &snapshot.Keys{})
	if err == nil {
		err = snap.Fill(s.t.Context(), map[string]*os.File{"ram0": ram, "disk0": disk}, snapshot.FillOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer os.Remove(ram.Name())
	return differ(sums(s.t, disk), s.paused)
}

// Prepare, Pause and Save are those of the VM of a checkpoint.
func (s *diskSnapshots) Prepare(context.Context) error { return nil }

func (s *diskSnapshots) Pause(ctx context.Context) error { return s.vm.Pause(ctx) }

func (s *diskSnapshots) Save(context.Context) (json.RawMessage, error) {
	if s.notes != nil && s.settle {
		writers, err := bpf.Writers(s.vm.Process().PID, s.disk)
		if err == nil {
			err = s.notes.Settle(writers)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.RawMessage(`{}`), nil
}

// goOn has the VM run on, once it is known what the disk was.
func (s *diskSnapshots) goOn() {
	s.paused = sums(s.t, s.disk)
	s.resume()
}
