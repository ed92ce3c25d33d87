package osthread_test

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/osthread"
)

// No function gets the program's first thread, and each error comes back.
func TestDo(t *testing.T) {
	failed := errors.New("failed")
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			err := osthread.Do(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the first thread")
				}
				return failed
			})
			if !errors.Is(err, failed) {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
