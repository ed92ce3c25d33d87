package snapshot

import (
	"sync"

	"godwit.dev/godwit/snapshot/format"
)

// late holds the frames that wait to be encoded until the pause is over.
type late struct {
	mu     sync.Mutex
	room   int64 // bytes of frames that may still wait
	frames []lateFrame
}

type lateFrame struct {
	frame *frame
	raw   []byte
}

// take reports whether there was room for a frame.
func (l *late) take(f lateFrame) bool {
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
func (l *late) next() (lateFrame, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.frames)
	if n == 0 {
		return lateFrame{}, false
	}
	f := l.frames[n-1]
	l.frames = l.frames[:n-1]
	l.room += format.MaxFrame
	return f, true
}
