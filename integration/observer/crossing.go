package observer

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/images"
)

// Tick is a beacon at the port of the node that it came from; the kernel says when.
type Tick struct {
	Counter uint64
	At      time.Time
}

// Ports hears the beacons of one guest at several places of the wire, so that it tells
// where the guest is.
type Ports struct {
	mu    sync.Mutex
	ticks [][]Tick // by place
}

// Hear reads sockets of harness.Sniff until they are closed, one for each place.
func Hear(files ...*os.File) *Ports {
	p := &Ports{ticks: make([][]Tick, len(files))}
	for i, f := range files {
		go p.read(i, f)
	}
	return p
}

func (p *Ports) read(place int, f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	data, oob := make([]byte, 2048), make([]byte, 128)
	for {
		var n, on int
		var rerr error
		err := conn.Read(func(fd uintptr) bool {
			n, on, _, _, rerr = unix.Recvmsg(int(fd), data, oob, 0)
			return rerr != unix.EAGAIN
		})
		if err != nil {
			return
		}
		if rerr != nil {
			continue
		}
		if t, ok := parseTick(data[:n], oob[:on]); ok {
			p.add(place, t)
		}
	}
}

// parseTick takes an IP packet with a beacon, and what the kernel says of it.
func parseTick(packet, oob []byte) (t Tick, ok bool) {
	const udp = 8
	if len(packet) < 20 {
		return t, false
	}
	head := int(packet[0]&15)*4 + udp
	var b images.Beacon
	if len(packet) < head || json.Unmarshal(packet[head:], &b) != nil {
		return t, false
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return t, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS &&
			len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			ts := *(*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return Tick{b.Counter, time.Unix(ts.Unix())}, true
		}
	}
	return t, false
}

func (p *Ports) add(place int, t Tick) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticks[place] = append(p.ticks[place], t)
}

// Forget drops what was heard, before a move.
func (p *Ports) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.ticks)
}

// Crossing is a guest's way from one place to another.
type Crossing struct {
	Gap         time.Duration // from the last tick here to the first one there
	Last, First Tick
	Lost        int // counters between both of which nothing was heard, anywhere
	Twice       int // heard more than once, at whatever place
	Late        int // heard here after the first one there
}

// Cross answers how the guest went since Forget. An error says where it was not heard.
func (p *Ports) Cross(from, to int) (c Crossing, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	here, there := p.ticks[from], p.ticks[to]
	if len(here) == 0 || len(there) == 0 {
		return c, fmt.Errorf("the guest was heard %d times where it was and %d times where it went", len(here), len(there))
	}
	c.Last, c.First = here[len(here)-1], there[0]
	c.Gap = c.First.At.Sub(c.Last.At)
	seen := map[uint64]int{}
	for _, ticks := range p.ticks {
		for _, t := range ticks {
			if seen[t.Counter]++; seen[t.Counter] > 1 {
				c.Twice++
			}
		}
	}
	for _, t := range here {
		if t.At.After(c.First.At) {
			c.Late++
		}
	}
	end := there[len(there)-1].Counter
	for n := here[0].Counter; n <= end; n++ {
		if seen[n] == 0 {
			c.Lost++
		}
	}
	return c, nil
}

// Around answers up to n ticks before a guest's way and after it.
func (p *Ports) Around(from, to, n int) (here, there []Tick) {
	p.mu.Lock()
	defer p.mu.Unlock()
	here, there = p.ticks[from], p.ticks[to]
	return slices.Clone(here[max(0, len(here)-n):]), slices.Clone(there[:min(n, len(there))])
}

// Heard answers when the guest was last heard at a place since Forget; zero: not at all.
func (p *Ports) Heard(place int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ticks := p.ticks[place]; len(ticks) > 0 {
		return ticks[len(ticks)-1].At
	}
	return time.Time{}
}

// Arrived reports whether the guest was heard at a place since Forget.
func (p *Ports) Arrived(place int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ticks[place]) > 0
}
