package controller

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// A frame of ttrpc: length, stream, type and flags, then so many bytes (channel.go of its module).
const (
	frameHeader   = 10
	frameLimit    = 4 << 20 // a longer one is thrown away as it comes
	frameRequest  = 1
	frameResponse = 2
	frameData     = 3
	frameLast     = 1 // flag: nothing comes after it on this stream
)

// frames follows the frames of one direction.
type frames struct {
	header [frameHeader]byte
	have   int    // bytes of header
	left   uint32 // bytes of the frame after it
}

func (f *frames) length() uint32 { return binary.BigEndian.Uint32(f.header[:4]) }
func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.header[4:8]) }
func (f *frames) kind() byte     { return f.header[8] }

// next is how many bytes come until something happens: the header is whole, or the frame over.
func (f *frames) next() int {
	if f.have < frameHeader {
		return frameHeader - f.have
	}
	return int(f.left)
}

// pass takes no more bytes than that; begun says that the header is whole with them, over that the
// frame is.
func (f *frames) pass(p []byte) (begun, over bool) {
	if f.have < frameHeader {
		f.have += copy(f.header[f.have:], p)
		if begun = f.have == frameHeader; begun {
			f.left = f.length()
		}
	} else {
		f.left -= uint32(len(p))
	}
	if over = f.have == frameHeader && f.left == 0; over {
		f.have = 0
	}
	return begun, over
}

// peerConn is a peer's connection to a ttrpc server. It reads a call only while the peer's window has room
// for one.
type peerConn struct {
	net.Conn
	window *window
	leave  func()

	in   frames // of the reader alone
	last uint32 // stream that was read, of the reader alone
	out  frames // of the writer alone

	mu     sync.Mutex
	ended  bool
	over   chan struct{}
	calls  map[uint32]int // bytes of the requests that are not answered yet, by stream
	asked  int            // all of them
	unread int            // bytes of answers that the server has and has not written yet
}

func newPeerConn(conn net.Conn, w *window, leave func()) *peerConn {
	return &peerConn{Conn: conn, window: w, leave: leave, over: make(chan struct{}), calls: map[uint32]int{}}
}

// Read implements net.Conn.
func (l *peerConn) Read(p []byte) (int, error) {
	if l.in.have == 0 && !l.window.awaitCall(l.open, l.over) {
		return 0, io.EOF
	}
	n, err := l.Conn.Read(p[:min(len(p), l.in.next())])
	if n > 0 {
		if begun, _ := l.in.pass(p[:n]); begun && !l.noteCall(l.in.kind(), l.in.stream(), l.in.length()) {
			return 0, io.EOF
		}
	}
	return n, err
}

// open are the calls that are not answered yet, and the bytes of their requests.
func (l *peerConn) open() (calls, asked int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls), l.asked
}

// noteCall counts a call. It is false for what no client sends: ttrpc would answer each such frame, and
// what is answered is counted by its stream.
func (l *peerConn) noteCall(kind byte, stream, length uint32) bool {
	if kind != frameRequest {
		return kind != frameData
	}
	if stream <= l.last {
		return false
	}
	if l.last = stream; length > frameLimit { // refused, and not kept
		length = 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.calls[stream] = int(length)
		l.asked += int(length)
		l.window.add(1, int(length), 0)
	}
	return true
}

// Write implements net.Conn.
func (l *peerConn) Write(p []byte) (n int, err error) {
	n, err = l.Conn.Write(p)
	for rest := p[:n]; len(rest) > 0; {
		some := rest[:min(len(rest), l.out.next())]
		rest = rest[len(some):]
		begun, over := l.out.pass(some)
		body := len(some)
		if begun {
			body = 0
		}
		l.noteWritten(body, over)
	}
	return n, err
}

// noteWritten counts bytes of the body of a frame.
func (l *peerConn) noteWritten(body int, over bool) {
	kind, stream := l.out.kind(), l.out.stream()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	if kind == frameResponse {
		took := min(body, l.unread)
		l.unread -= took
		l.window.add(0, 0, -took)
	}
	asked, ok := l.calls[stream]
	if ok && over && (kind == frameResponse || kind == frameData && l.out.header[9]&frameLast != 0) {
		delete(l.calls, stream)
		l.asked -= asked
		l.window.add(-1, -asked, 0)
	}
}

// admitAnswer counts an answer of that many bytes, which the server writes next, or refuses it.
func (l *peerConn) admitAnswer(bytes int, refusable bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return nil
	}
	if err := l.window.admitAnswer(bytes, refusable); err != nil {
		return err
	}
	l.unread += bytes
	return nil
}

// Close implements net.Conn.
func (l *peerConn) Close() error {
	l.end()
	return l.Conn.Close()
}

func (l *peerConn) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	close(l.over)
	l.window.add(-len(l.calls), -l.asked, -l.unread)
	l.leave()
}
