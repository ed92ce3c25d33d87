package process

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread calls do on a thread that ends with it, whatever do has made of it. It is never the
// first one: that stays as long as the program, and /proc shows what it is as the program's.
func onThread(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(do) // on another one, as this one is taken
			runtime.UnlockOSThread()
			return
		}
		do() // and never unlocked
	}()
	<-done
}
