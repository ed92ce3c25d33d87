// Package gcpause bounds how long the Go runtime of a program may stand still.
//
// To stop the world, as each garbage collection does for an instant, the runtime of Go 1.26
// and 1.27 takes the processors of threads that are in a system call. It looks once, and
// does not see a thread that is just entering one, or that sysmon is looking at. Such a
// thread keeps its processor for as long as its call takes: for ever, if it reads a pipe.
// sysmon would take it back, and sleeps while the world is being stopped, until a timer is
// due or for a minute; the whole process stands still until then. It is rare (one of 240,000
// starts of a worker on a busy host), and nobody who pauses a VM, wakes one or waits for an
// answer has a minute.
package gcpause

import "time"

const (
	// Idle is the beat of programs that mostly wait: it must cost nothing.
	Idle = time.Second
	// Busy is that of those which work until they end, and for which a VM may be paused.
	Busy = 20 * time.Millisecond
)

// Keep has a timer due at least every beat, for as long as the process lives: sysmon sleeps
// no longer than that.
func Keep(beat time.Duration) {
	go func() {
		for range time.Tick(beat) {
		}
	}()
}
