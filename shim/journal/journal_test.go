package journal

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/durable"
)

// What write has answered for is there after a crash; a half-written successor
// is not looked at.
func TestJournalSurvivesACrash(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); !errdefs.IsNotFound(err) {
		t.Fatalf("load of nothing = %v", err)
	}
	if err := (&Journal{Phase: Prepared, Operation: "o"}).Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(durable.Unfinished(File(dir)), []byte(`{"version":1,"phase":"OW`), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := Read(dir)
	if err != nil || j.Phase != Prepared || j.Operation != "o" {
		t.Errorf("load = %+v, %v", j, err)
	}
	if err := os.WriteFile(File(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); !errdefs.IsDataLoss(err) {
		t.Errorf("load of a torn journal = %v, want data loss", err)
	}
}

// A journal that cannot be written says what is to be done.
func TestJournalOnABadDisk(t *testing.T) {
	for errno, is := range map[syscall.Errno]func(error) bool{
		syscall.ENOSPC: errdefs.IsResourceExhausted, syscall.EDQUOT: errdefs.IsResourceExhausted,
		syscall.EROFS: errdefs.IsFailedPrecondition,
	} {
		err := durable.DiskError(&os.PathError{Op: "write", Path: "/x", Err: errno})
		if !is(err) || !strings.Contains(err.Error(), "state_dir") {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// What no shim has written is refused: an exec without an id would stand for init.
func TestResumeIsChecked(t *testing.T) {
	for _, all := range [][]MovedExec{{{Guest: "g"}}, {{ID: "e"}}, {{ID: "e", Guest: "g"}, {ID: "f", Guest: "g"}},
		{{ID: "e", Guest: "g"}, {ID: "e", Guest: "h"}}} {
		if err := (&Resume{Execs: all}).Check(); !errdefs.IsDataLoss(err) {
			t.Errorf("%+v: %v", all, err)
		}
	}
	if err := (&Resume{Execs: []MovedExec{{ID: "e", Guest: "f"}, {ID: "f", Guest: "e"}}}).Check(); err != nil {
		t.Error(err)
	}
}
