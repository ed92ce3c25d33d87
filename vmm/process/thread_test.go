package process

import (
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// However many threads are made for processes, the program's first one is as it was: what /proc
// says of the program, and what the program does there, is what it was.
func TestFirstThreadIsSpared(t *testing.T) {
	before := status(t, os.Getpid(), "CapBnd", "NoNewPrivs")
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			onThread(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("the first thread was given away")
				}
				if err := dropRights(); err != nil {
					t.Error(err)
				}
			})
		})
	}
	group.Wait()
	if after := status(t, os.Getpid(), "CapBnd", "NoNewPrivs"); !slices.Equal(after, before) {
		t.Errorf("%q, before %q", after, before)
	}
}
