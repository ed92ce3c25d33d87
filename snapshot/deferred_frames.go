package snapshot

import (
	"sync"

	"godwit.dev/godwit/snapshot/format"
)

// deferredFrames holds the frames that wait to be encoded until the pause is over.
type deferredFrames struct {
	mu     sync.Mutex
	room   int64 // bytes of frames that may still wait
	frames []deferredFrame
}

type deferredFrame struct {
	frame *frame
	raw   []byte
}

// take reports whether there was room for a frame.
func (l *deferredFrames) take(f deferredFrame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room < format.MaxFrame {
		return false
	}
	l.room -= format.MaxFrame
	l.frames = append(l.frames, f)
	return true
}

// next gives a frame out, and its room back.
func (l *deferredFrames) next() (deferredFrame, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.frames)
	if n == 0 {
		return deferredFrame{}, false
	}
	f := l.frames[n-1]
	l.frames = l.frames[:n-1]
	l.room += format.MaxFrame
	return f, true
}
