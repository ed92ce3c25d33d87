package connlimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// window is the time in which LogLimit counts.
const window = time.Minute

// LogLimit bounds the lines that unknown clients make a program log to Most in a minute. The first
// line after that says how many were left out.
type LogLimit struct {
	Most int // 0: a screen of them

	mu      sync.Mutex
	begun   time.Time
	written int
	unsaid  int
}

const screen = 30

// Warn writes a line as slog does, or leaves it out.
func (l *LogLimit) Warn(ctx context.Context, msg string, args ...any) {
	if ok, unsaid := l.next(); ok {
		if unsaid > 0 {
			args = append(args, "unsaid", unsaid)
		}
		slog.WarnContext(ctx, msg, args...)
	}
}

func (l *LogLimit) next() (ok bool, unsaid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := l.Most
	if most == 0 {
		most = screen
	}
	if now := time.Now(); l.begun.IsZero() || now.Sub(l.begun) > window {
		l.begun, l.written = now, 0
	}
	if l.written >= most {
		l.unsaid++
		return false, 0
	}
	l.written++
	unsaid, l.unsaid = l.unsaid, 0
	return true, unsaid
}
