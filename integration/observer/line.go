package observer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"godwit.dev/godwit/integration/images"
)

// Line is one TCP connection to the probe, by which it is asked again and again.
type Line struct {
	conn   net.Conn
	reader *bufio.Reader
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	said Said
}

// Said is what came over a line.
type Said struct {
	Err     error // the first one; the line is silent after it
	Counter uint64
	Asked   int
	Longest time.Duration // that an answer took
}

// Call connects to the probe and asks it all the time, each answer within bound, until
// HangUp.
func Call(ctx context.Context, dial Dial, address string, bound time.Duration) (*Line, error) {
	return CallEvery(ctx, dial, address, bound, 5*time.Millisecond)
}

// CallEvery is Call that rests after each answer.
func CallEvery(ctx context.Context, dial Dial, address string, bound, rest time.Duration) (*Line, error) {
	conn, err := dial(ctx, "tcp", net.JoinHostPort(address, probePort))
	if err != nil {
		return nil, err
	}
	l := &Line{conn: conn, reader: bufio.NewReader(conn)}
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.done.Go(func() { l.talk(ctx, bound, rest) })
	return l, nil
}

// HangUp ends the talk and answers what was said.
func (l *Line) HangUp() Said {
	l.stop()
	l.done.Wait()
	l.conn.Close()
	return l.Said()
}

// Said answers what was said up to now.
func (l *Line) Said() Said {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said
}

func (l *Line) talk(ctx context.Context, bound, rest time.Duration) {
	for ctx.Err() == nil {
		begun := time.Now()
		s, err := l.ask(begun.Add(bound))
		if !l.note(s, err, time.Since(begun)) {
			return
		}
		_ = Pause(ctx, rest)
	}
}

func (l *Line) note(s images.ProbeState, err error, took time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && s.Counter < l.said.Counter {
		err = fmt.Errorf("counter %d after %d", s.Counter, l.said.Counter)
	}
	l.said.Err, l.said.Longest = err, max(l.said.Longest, took)
	if err == nil {
		l.said.Counter, l.said.Asked = s.Counter, l.said.Asked+1
	}
	return err == nil
}

func (l *Line) ask(deadline time.Time) (state images.ProbeState, err error) {
	if err := l.conn.SetDeadline(deadline); err != nil {
		return state, err
	}
	req, err := http.NewRequest(http.MethodGet, "http://probe/", nil)
	if err != nil {
		return state, err
	}
	if err := req.Write(l.conn); err != nil {
		return state, err
	}
	resp, err := http.ReadResponse(l.reader, req)
	if err != nil {
		return state, err
	}
	defer resp.Body.Close()
	return state, json.NewDecoder(resp.Body).Decode(&state)
}
