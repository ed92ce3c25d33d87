package bpf

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// helper has this binary note a file, and wait.
const helper = "GODWIT_TEST_NOTE_FILE"

func TestMain(m *testing.M) {
	path := os.Getenv(helper)
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		var n *FileNotes
		if n, err = NoteFile(context.Background(), f, 2); err == nil {
			fmt.Println(n.Map.Fd())
			select {}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// The notes of a process that is killed have ended: a reader never believes them, and others can begin.
func TestNotesOfAProcessThatDies(t *testing.T) {
	d := newDisk(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helper+"="+d.f.Name())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var fd int
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, e := fmt.Sscan(line, &fd); e != nil || err != nil {
		t.Fatal(line, err)
	}
	process, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	has, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	table := os.NewFile(uintptr(has), "bpf map")
	defer table.Close()
	if d.noted, err = OpenNoted(table, int64(len(d.was))); err != nil {
		t.Fatal(err)
	}
	defer d.noted.Close()
	heard := func() (all int) {
		if _, err := d.f.WriteAt([]byte("data"), 4096); err != nil {
			t.Fatal(err)
		}
		d.noted.Take(func(int64, int64) { all++ })
		return all
	}
	if n := heard(); n != 1 || d.noted.Settled() {
		t.Errorf("%d ranges; settled: %v", n, d.noted.Settled())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 1000 { // until the kernel has let go of the programs
		if heard() == 0 {
			break
		}
	}
	if n := heard(); n != 0 || d.noted.Settled() {
		t.Errorf("%d ranges are noted without the process; settled: %v", n, d.noted.Settled())
	}
	d.note()
}
