package stream

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/snapshot/format"
)

// Reader takes frames, in order. It holds no more of them than it was told.
type Reader struct {
	from   io.Reader
	number uint64 // of the next frame
	bytes  uint64 // of all frames that came, heads included
	all    transcript
	before string // digest of the frames before an End
	bodies chan []byte
}

// NewReader reads from r. Next waits while that many frames have not been freed.
func NewReader(r io.Reader, frames int) *Reader {
	out := &Reader{from: r, all: newTranscript(), bodies: make(chan []byte, frames)}
	for range frames {
		out.bodies <- nil
	}
	return out
}

// Next answers the next frame, which the caller verifies and frees. io.EOF: the other end
// has closed between two frames.
func (r *Reader) Next() (*Frame, error) {
	f := &Frame{}
	if _, err := io.ReadFull(r.from, f.head[:]); err != nil {
		if err == io.EOF {
			return nil, io.EOF
		}
		return nil, cut(err)
	}
	f.Kind, f.Codec = Kind(f.head[0]), format.Codec(f.head[1])
	f.Space = int(binary.LittleEndian.Uint16(f.head[2:]))
	length, number := binary.LittleEndian.Uint32(f.head[4:]), binary.LittleEndian.Uint64(f.head[8:])
	switch {
	case f.Kind < KindHello || f.Kind > KindReached:
		return nil, broken("frame %d is of unknown kind %d", r.number, f.Kind)
	case length > maxBody:
		return nil, broken("frame %d has %d bytes", r.number, length)
	case number != r.number:
		return nil, broken("frame %d came in the place of %d", number, r.number)
	}
	r.number++
	if f.Kind == KindEnd {
		r.before = r.all.text()
	}
	r.all.add(f.head[:])
	body := <-r.bodies
	if cap(body) < int(length) {
		body = make([]byte, maxBody)
	}
	f.free = func() { r.bodies <- body[:cap(body)] }
	f.Body = body[:length]
	if _, err := io.ReadFull(r.from, f.Body); err != nil {
		f.Free()
		return nil, cut(err)
	}
	r.bytes += uint64(len(f.head)) + uint64(length)
	return f, nil
}

// cut is the error of a connection that broke.
func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("stream: the other end closed the connection: %w", errdefs.ErrUnavailable)
	}
	return fmt.Errorf("stream: %w: %w", err, errdefs.ErrUnavailable)
}

// expect takes a frame of one kind into v; a Failed in its place is the other end's error.
func (r *Reader) expect(kind Kind, v any) error {
	f, err := r.answer()
	if err != nil {
		return err
	}
	if f.Kind == kind {
		return f.into(v)
	}
	f.Free()
	return broken("frame of kind %d came instead of %d", f.Kind, kind)
}

// answer takes a frame, verified. A Failed is none: it is the other end's error.
func (r *Reader) answer() (*Frame, error) {
	f, err := r.Next()
	if err == io.EOF {
		err = cut(err)
	}
	if err != nil {
		return nil, err
	}
	if err = f.Verify(); err == nil && f.Kind == KindFailed {
		err = f.failure()
	}
	if err != nil {
		f.Free()
		return nil, err
	}
	return f, nil
}

// into decodes the document of a frame, which is done with then.
func (f *Frame) into(v any) error {
	defer f.Free()
	return f.decode(v)
}

func (f *Frame) decode(v any) error {
	if err := json.Unmarshal(f.Body, v); err != nil {
		return broken("frame of kind %d: %v", f.Kind, err)
	}
	return nil
}

// failure is the error of the other end.
func (f *Frame) failure() error {
	var said Failed
	if err := f.decode(&said); err != nil {
		return err
	}
	class := record.ClassOf(said.Class)
	if class == nil || errdefs.IsUnauthorized(class) { // it has shown who it is: that class is the handshake's alone
		class = errdefs.ErrUnknown
	}
	return &RemoteError{text: said.Text, class: class}
}

// RemoteError is one of the other end.
type RemoteError struct {
	text  string
	class error
}

func (e *RemoteError) Error() string { return "the other end: " + e.text }

// Unwrap gives the class.
func (e *RemoteError) Unwrap() error { return e.class }

// Accept waits for the destination's answer to a hello.
func (r *Reader) Accept() (Accept, error) {
	var a Accept
	err := r.expect(KindAccept, &a)
	return a, err
}

// Ready waits until the destination has all of it. reached hears of its barriers.
func (r *Reader) Ready(reached func(barrier uint64)) (Ready, error) {
	for {
		f, err := r.answer()
		if err != nil {
			return Ready{}, err
		}
		switch f.Kind {
		case KindReady:
			var ready Ready
			return ready, f.into(&ready)
		case KindReached:
			var at Reached
			if err := f.into(&at); err != nil {
				return Ready{}, err
			}
			reached(at.Barrier)
		default:
			f.Free()
			return Ready{}, broken("frame of kind %d came instead of %d", f.Kind, KindReady)
		}
	}
}
