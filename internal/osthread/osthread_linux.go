// Package osthread runs functions on operating system threads that end with them. Such a
// function may change its thread: namespaces, working directory, signal mask. No other code sees
// the change, and it is gone after a crash too.
package osthread

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls do on a thread that no goroutine uses afterwards, and answers its error. It is never the
// first thread: that one lasts as long as the program, and /proc shows what it is as the program's.
// Goroutines that do starts run on other threads.
func Do(do func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("function on its own thread did not return")
		defer func() { done <- err }()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err = Do(do) // on another one, as this one is taken
			runtime.UnlockOSThread()
			return
		}
		err = do() // still locked: the thread ends with the goroutine
	}()
	return <-done
}
