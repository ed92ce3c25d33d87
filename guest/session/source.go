package session

import (
	"encoding/binary"
	"slices"
)

// Source is a stream of the guest that goes to the host in bulk, separate from the stream of the
// Conn. It keeps what the host does not have, so the session keeps nothing of it. Its methods
// are called under the session's lock.
type Source interface {
	// Next copies the next bytes into p and says what they are; false when there is
	// nothing to say or the host wants no more. It does not block.
	Next(p []byte) (Piece, bool)
	// Want tells what the host wants from now on.
	Want(Want)
}

// Piece is what a Source sends at once.
type Piece struct {
	At   uint64 // offset of the first byte
	Len  int
	End  bool // nothing follows
	Skip bool // the host asked for bytes before At, which are gone
	Gone bool // there is no such stream
}

// Want is what the host wants of a lane.
type Want struct {
	Have  uint64 // everything before is the host's for good
	From  uint64 // where to go on, if Again
	Limit uint64 // how far; 0: not at all
	Again bool
}

// Flags of a bulk frame, in its limit field, and of a want, in its payload.
const (
	flagEnd   = 1
	flagSkip  = 2
	flagGone  = 4
	flagAgain = 1
)

// A want's payload: the lane's key, which its bulk frames carry, flags, its name.
const wantHeader = 9

// sources are the lanes of one session in the guest.
type sources struct {
	byKey map[uint64]Source
	order []uint64
	turn  int
}

func (s *sources) add(key uint64, src Source) {
	if s.byKey == nil {
		s.byKey = make(map[uint64]Source)
	}
	s.byKey[key] = src
	s.order = append(s.order, key)
}

func (s *sources) remove(key uint64) {
	delete(s.byKey, key)
	s.order = slices.DeleteFunc(s.order, func(k uint64) bool { return k == key })
}

// silenceAll keeps all of them silent until the host wants them again.
func (s *sources) silenceAll() {
	for _, src := range s.byKey {
		src.Want(Want{})
	}
}

// serveWant obeys the host.
func (c *Conn) serveWant(f frame, open func([]byte) Source) {
	if len(f.payload) < wantHeader || open == nil {
		return
	}
	key := binary.LittleEndian.Uint64(f.payload)
	src := c.sources.byKey[key]
	if src == nil {
		if f.limit == 0 {
			return
		}
		if src = open(f.payload[wantHeader:]); src == nil {
			src = &missing{}
		}
		c.sources.add(key, src)
	}
	src.Want(Want{Have: f.recv, From: f.seq, Limit: f.limit, Again: f.payload[8]&flagAgain != 0})
	if f.limit == 0 {
		c.sources.remove(key)
	}
	c.wake()
}

// appendBulk appends the next frame of the lane whose turn it is, if any has one. The
// source writes where the frame goes out from: there is one copy.
func (c *Conn) appendBulk(b []byte) []byte {
	s := &c.sources
	b = slices.Grow(b, frameSize)
	room := b[len(b) : len(b)+frameSize]
	for range s.order {
		s.turn = (s.turn + 1) % len(s.order)
		key := s.order[s.turn]
		piece, ok := s.byKey[key].Next(room[headerSize:])
		if !ok {
			continue
		}
		f := frame{
			kind: typeBulk, version: Version, features: featureBulk, nonce: c.nonce, seq: piece.At, recv: key,
			limit:   piece.flags(),
			payload: room[headerSize : headerSize+piece.Len],
		}
		return f.appendHeader(b)[:len(b)+headerSize+piece.Len]
	}
	return b
}

func (p Piece) flags() (flags uint64) {
	if p.End {
		flags |= flagEnd
	}
	if p.Skip {
		flags |= flagSkip
	}
	if p.Gone {
		flags |= flagGone
	}
	return flags
}

// missing answers for a stream that is not there.
type missing struct{ told bool }

func (m *missing) Want(w Want) { m.told = m.told && !w.Again || w.Limit == 0 }

func (m *missing) Next([]byte) (Piece, bool) {
	was := m.told
	m.told = true
	return Piece{Gone: true}, !was
}
