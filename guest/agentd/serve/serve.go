// Package serve answers the host's calls in the guest. It speaks the part of ttrpc that
// the agent uses, unary calls, with what a guest has to run anyway: ttrpc's own server
// brings protobuf's runtime and grpc's along, and their way to main is longer than that
// of everything else that starts a container.
package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/agent/lean"
)

const (
	headerSize   = 10      // length, stream: 4 bytes each; type, flags
	maxMessage   = 4 << 20 // ttrpc's own bound
	typeRequest  = 1
	typeResponse = 2
)

// Server answers the calls of one service.
type Server struct {
	Service  string
	Handlers map[string]lean.Handler
	// Log takes what the host is not told, or what is a fault of this program.
	Log func(format string, args ...any)
}

// Serve answers connections until the listener is closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go s.connection(ctx, c)
	}
}

// connection answers every call in a goroutine of its own, until the host is gone. What
// still runs then has its context ended.
func (s *Server) connection(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.Close()
	var mu sync.Mutex // of writes
	r := bufio.NewReader(c)
	for {
		var h [headerSize]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return
		}
		size, stream, kind := binary.BigEndian.Uint32(h[:]), binary.BigEndian.Uint32(h[4:]), h[8]
		answer := func(payload []byte, err error) {
			mu.Lock()
			defer mu.Unlock()
			if s.send(c, stream, payload, err) != nil {
				c.Close() // which ends the loop
			}
		}
		if size > maxMessage {
			if _, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
				return
			}
			answer(nil, fmt.Errorf("message of %d bytes, %d are the most: %w", size, maxMessage, errdefs.ErrResourceExhausted))
			continue
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(r, message); err != nil {
			return
		}
		if kind == typeRequest {
			go func() { answer(s.call(ctx, message)) }()
		}
	}
}

// call answers one request. A panic ends the call, not the guest.
func (s *Server) call(ctx context.Context, message []byte) (payload []byte, err error) {
	q, err := parseRequest(message)
	if err != nil {
		return nil, err
	}
	do := s.Handlers[q.method]
	if q.service != s.Service || do == nil {
		return nil, fmt.Errorf("method %s/%s: %w", q.service, q.method, errdefs.ErrNotImplemented)
	}
	defer func() {
		if p := recover(); p != nil {
			s.Log("panic in %s: %v\n%s", q.method, p, debug.Stack())
			payload, err = nil, fmt.Errorf("%s: panic: %v: %w", q.method, p, errdefs.ErrInternal)
		}
	}()
	if q.timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, q.timeout)
		defer cancel()
		ctx = bounded
	}
	payload, err = do(ctx, q.payload)
	if errdefs.IsInternal(err) {
		s.Log("%s: %v", q.method, err)
	}
	return payload, err
}

// send writes a response in one piece.
func (s *Server) send(c net.Conn, stream uint32, payload []byte, err error) error {
	body := appendResponse(make([]byte, headerSize, headerSize+len(payload)+64), payload, err)
	if len(body)-headerSize > maxMessage {
		err := fmt.Errorf("answer of %d bytes, %d are the most: %w", len(payload), maxMessage, errdefs.ErrResourceExhausted)
		body = appendResponse(body[:headerSize], nil, err)
	}
	binary.BigEndian.PutUint32(body, uint32(len(body)-headerSize))
	binary.BigEndian.PutUint32(body[4:], stream)
	body[8] = typeResponse
	_, err = c.Write(body)
	return err
}

type request struct {
	service, method string
	payload         []byte
	timeout         time.Duration
}

func parseRequest(message []byte) (q request, err error) {
	err = lean.Fields(message, func(tag int, v lean.Value) error {
		switch tag {
		case 1<<lean.TypeBits | lean.Bytes:
			q.service = string(v.Data)
		case 2<<lean.TypeBits | lean.Bytes:
			q.method = string(v.Data)
		case 3<<lean.TypeBits | lean.Bytes:
			q.payload = v.Data
		case 4<<lean.TypeBits | lean.Varint:
			q.timeout = time.Duration(v.Number)
		}
		return nil
	})
	return q, err
}
