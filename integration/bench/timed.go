package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"godwit.dev/godwit/integration/harness"
)

var nan = math.NaN()

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// stamp notes when the mark came.
type stamp struct {
	mu  sync.Mutex
	buf bytes.Buffer
	at  time.Time
}

func (s *stamp) Write(p []byte) (int, error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(p)
	if s.at.IsZero() && bytes.Contains(s.buf.Bytes(), []byte(mark)) {
		s.at = now
	}
	return len(p), nil
}

// timed runs a program in the node whose output must hold the mark. It answers the times from its start to the mark and
// to its end.
func (b *bench) timed(ctx context.Context, name string, args ...string) (first, end time.Duration, err error) {
	return b.timedOn(ctx, b.node, name, args...)
}

func (b *bench) timedOn(ctx context.Context, node *harness.Node, name string, args ...string) (first, end time.Duration,
	err error) {
	cmd := node.Command(ctx, name, args...)
	var out stamp
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	begun := time.Now()
	if err := node.Enter(cmd.Start); err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", name, err)
	}
	err = cmd.Wait()
	end = time.Since(begun)
	if err != nil {
		return 0, 0, fmt.Errorf("%s %v: %w: %s", name, args, err, stderr.Bytes())
	}
	if out.at.IsZero() {
		return 0, 0, fmt.Errorf("%s %v: no %q in its output %q", name, args, mark, out.buf.Bytes())
	}
	return out.at.Sub(begun), end, nil
}
