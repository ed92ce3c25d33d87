// Package gcpause bounds how long the Go runtime of a program may stand still.
//
// Each garbage collection stops the world for an instant. The runtime of Go 1.26 and 1.27 then
// takes the processors of threads that are in a system call. It looks once, and does not see a
// thread that is just entering one, or that sysmon is looking at. Such a thread keeps its
// processor for as long as its call takes: for ever, if it reads a pipe. sysmon would take the
// processor back, but it sleeps while the world is being stopped. It wakes when a timer is due,
// or after a minute; the whole process stands still until then. This is rare (one of 240,000
// starts of a worker on a busy host). But a user who pauses a VM, wakes one or waits for an
// answer cannot wait a minute.
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
