package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/snapshot/format"
)

// Writer sends frames. Several goroutines may send at once: what they send is put into
// one order. A slow other end holds them up; nothing is kept meanwhile.
type Writer struct {
	to   io.Writer
	rate float64 // bytes a second; 0: no bound

	mu     sync.Mutex
	number uint64
	all    transcript
	moved  uint64
	busy   time.Duration // in writes, and until the other end had what was written
	paid   time.Time     // when what was sent fits the rate
	err    error         // of a write: nothing is sent after it
}

// NewWriter sends to w, at most so many bytes a second; 0: as fast as it can.
func NewWriter(w io.Writer, bandwidth int64) *Writer {
	return &Writer{to: w, rate: float64(bandwidth), all: newTranscript()}
}

// Packet is a frame that is being made; it keeps its memory for the next one.
type Packet struct{ buf []byte }

func (p *Packet) body() []byte { return p.buf[headSize:] }

func (p *Packet) reset() { p.buf = append(p.buf[:0], make([]byte, headSize)...) }

func (p *Packet) add(data ...byte) { p.buf = append(p.buf, data...) }

func (p *Packet) add64(v uint64) { p.buf = binary.LittleEndian.AppendUint64(p.buf, v) }

// send closes the packet and writes it.
func (w *Writer) send(ctx context.Context, p *Packet, kind Kind, codec format.Codec, space int) error {
	head, body := p.buf[:headSize], p.body()
	if len(body) > maxBody {
		return fmt.Errorf("stream: frame of %d bytes: %w", len(body), errdefs.ErrInternal)
	}
	head[0], head[1] = byte(kind), byte(codec)
	binary.LittleEndian.PutUint16(head[2:], uint16(space))
	binary.LittleEndian.PutUint32(head[4:], uint32(len(body)))
	sum := sumOf(head[:sealed], body)
	copy(head[16:], sum[:])
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(ctx, p.buf)
}

// write is called under the lock.
func (w *Writer) write(ctx context.Context, data []byte) error {
	if w.err != nil {
		return w.err
	}
	binary.LittleEndian.PutUint64(data[8:], w.number)
	w.number++
	w.all.add(data[:headSize])
	for len(data) > 0 && w.err == nil {
		part := data
		if w.rate > 0 {
			part = data[:min(len(data), max(4<<10, int(w.rate/20)))]
		}
		begun := time.Now()
		_, err := w.to.Write(part)
		w.busy += time.Since(begun)
		w.moved += uint64(len(part))
		data = data[len(part):]
		if err == nil {
			err = w.pay(ctx, len(part))
		}
		switch {
		case err != nil && ctx.Err() != nil:
			w.err = context.Cause(ctx)
		case err != nil:
			w.err = fmt.Errorf("stream: %w: %w", err, errdefs.ErrUnavailable)
		}
	}
	return w.err
}

// pay waits until n more bytes fit the rate.
func (w *Writer) pay(ctx context.Context, n int) error {
	if w.rate <= 0 {
		return nil
	}
	now := time.Now()
	if w.paid.Before(now) {
		w.paid = now
	}
	w.paid = w.paid.Add(time.Duration(float64(n) / w.rate * float64(time.Second)))
	t := time.NewTimer(w.paid.Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Moved counts the bytes sent.
func (w *Writer) Moved() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.moved
}

// Waited counts the time until the other end had what was sent: to lie between both ends is
// not to be taken.
func (w *Writer) Waited(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy += d
}

// Rate is how many bytes a second the other end takes, as far as it is known; 0: it is not.
func (w *Writer) Rate() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moved < 1<<20 {
		return w.rate
	}
	rate := float64(w.moved) / max(w.busy.Seconds(), 1e-6)
	if w.rate > 0 {
		rate = min(rate, w.rate)
	}
	return rate
}

// JSON sends a frame whose body is a document.
func (w *Writer) JSON(ctx context.Context, kind Kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	p := &Packet{}
	p.reset()
	p.add(data...)
	return w.send(ctx, p, kind, format.Raw, 0)
}

// Barrier has the other end finish what came before.
func (w *Writer) Barrier(ctx context.Context) error {
	p := &Packet{}
	p.reset()
	return w.send(ctx, p, KindBarrier, format.Raw, 0)
}

// Copy sends size bytes of a file as frames of a kind, in order.
func (w *Writer) Copy(ctx context.Context, kind Kind, space int, f *os.File, size int64) error {
	p := &Packet{}
	for at := int64(0); at < size; {
		p.reset()
		p.add64(uint64(at))
		n := int(min(chunk, size-at))
		from := len(p.buf)
		p.add(make([]byte, n)...)
		if _, err := f.ReadAt(p.buf[from:], at); err != nil {
			return fmt.Errorf("stream: read %s: %w", f.Name(), err)
		}
		if err := w.send(ctx, p, kind, format.Raw, space); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// Zeros sends runs of pages that are zero, pairs of the first and their number.
func (w *Writer) Zeros(ctx context.Context, space int, runs [][2]uint64) error {
	p := &Packet{}
	for len(runs) > 0 {
		n := min(len(runs), maxRuns)
		p.reset()
		for _, r := range runs[:n] {
			p.add64(r[0])
			p.add64(r[1])
		}
		if err := w.send(ctx, p, KindZeros, format.Raw, space); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// Pages sends pages of one space, raw, which numbers names. coder and p belong to the
// caller's goroutine.
func (w *Writer) Pages(ctx context.Context, coder *format.Coder, p *Packet, codec format.Codec, space int,
	numbers []uint64, raw []byte) error {
	stored, f, err := coder.Pack(codec, raw)
	if err != nil {
		return err
	}
	p.reset()
	p.add(byte(len(numbers)))
	for _, n := range numbers {
		p.add64(n)
	}
	p.add(stored...)
	return w.send(ctx, p, KindPages, f.Codec, space)
}

// End says that nothing more comes, and answers the digest of all of it.
func (w *Writer) End(ctx context.Context, resume json.RawMessage) (string, error) {
	w.mu.Lock()
	sum := w.all.text()
	w.mu.Unlock()
	if err := w.JSON(ctx, KindEnd, End{Sum: sum, Resume: resume}); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return DigestPrefix + w.all.text(), nil
}

// Fail tells the other end why this one gives up.
func (w *Writer) Fail(ctx context.Context, err error) error {
	return w.JSON(ctx, KindFailed, Failed{Class: record.Class(err), Text: err.Error()})
}
