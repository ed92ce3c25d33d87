package process

import (
	"os"
	"slices"
	"sync"
	"testing"

	"godwit.dev/godwit/internal/osthread"
)

// However many threads are made for processes, the program's first one is as it was: what /proc
// says of the program, and what the program does there, is what it was.
func TestFirstThreadIsSpared(t *testing.T) {
	before := status(t, os.Getpid(), "CapBnd", "NoNewPrivs")
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			if err := osthread.Do(dropRights); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if after := status(t, os.Getpid(), "CapBnd", "NoNewPrivs"); !slices.Equal(after, before) {
		t.Errorf("%q, before %q", after, before)
	}
}
