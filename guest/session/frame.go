package session

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/guest/session/queue"
)

// A frame is a header of headerSize bytes and length bytes of payload, all numbers
// little-endian:
//
//	0  magic    "GDWT"
//	4  type     uint8
//	5  version  uint8
//	6  features uint16  hello: what the sender can do beyond version 1
//	8  nonce    uint64   the session
//	16 seq      uint64   data: stream offset of the payload; hello: its number
//	24 recv     uint64   next stream offset expected from the peer
//	32 limit    uint64   the peer may send offsets below this
//	40 length   uint32   of the payload
//	44 checksum uint32   of the payload
//	48 crc32c   uint32   of the header before this field
//
// The frames of a lane, see lane.go, use seq, recv and limit for that lane.
const (
	headerSize = 52
	// maxPayload makes a full frame 32 KiB: the guest's kernel takes that much in one
	// write to a virtio-serial port.
	maxPayload = 32<<10 - headerSize
	frameSize  = headerSize + maxPayload
)

// VSockPort is where the guest listens if its channel is a vsock.
const VSockPort = 1024

// Version of the protocol. An endpoint speaks this one only.
const Version = version.Session

var (
	magic      = []byte("GDWT")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

type frameType uint8

const (
	typeHello  frameType = 1 // host: begin or go on; guest: the answer
	typeData   frameType = 2
	typeAck    frameType = 3 // recv and limit only
	typeReset  frameType = 4 // this session cannot go on
	typeFinish frameType = 5 // the peer has closed its end
	typeWant   frameType = 6 // host: what it wants of a lane
	typeBulk   frameType = 7 // guest: bytes of a lane
)

// featureBulk says that its sender knows lanes, and xxh64 as checksum of a payload.
const featureBulk = 1

type frame struct {
	features uint16
	kind     frameType
	version  uint8
	nonce    uint64
	seq      uint64
	recv     uint64
	limit    uint64
	payload  []byte
}

// checksum tells a payload from one that was cut. It is the low half of its xxh64 if the peer
// knows that. Where a CPU is emulated, a CRC costs more than all else that is done with the
// bytes.
func (f *frame) checksum() uint32 {
	if f.features&featureBulk != 0 && f.kind != typeHello {
		return uint32(xxhash.Sum64(f.payload))
	}
	return crc32.Checksum(f.payload, castagnoli)
}

// appendTo appends the frame's bytes to b.
func (f *frame) appendTo(b []byte) []byte { return append(f.appendHeader(b), f.payload...) }

func (f *frame) appendHeader(b []byte) []byte {
	start := len(b)
	b = append(b, magic...)
	b = append(b, byte(f.kind), f.version, byte(f.features), byte(f.features>>8))
	for _, n := range []uint64{f.nonce, f.seq, f.recv, f.limit} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.payload)))
	b = binary.LittleEndian.AppendUint32(b, f.checksum())
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// decoder finds frames in a stream that may hold garbage and cut frames. It never
// holds more than one frame and one read.
type decoder struct {
	buf queue.Bytes
}

// feed takes the next bytes of the channel.
func (d *decoder) feed(b []byte) { d.buf.Append(b) }

// next returns the next whole frame, or false when more bytes are needed. The payload
// is valid until the next feed.
func (d *decoder) next() (frame, bool) {
	for {
		if i := bytes.Index(d.buf.Held(), magic); i >= 0 {
			d.buf.Drop(i)
		} else {
			d.buf.Drop(max(0, d.buf.Len()-len(magic)+1))
		}
		held := d.buf.Held()
		if len(held) < headerSize {
			return frame{}, false
		}
		f, length, sum, ok := parseHeader(held)
		if ok && len(held) < headerSize+length {
			return frame{}, false
		}
		if ok {
			f.payload = held[headerSize : headerSize+length]
			ok = f.checksum() == sum
		}
		if ok {
			d.buf.Drop(headerSize + length)
			return f, true
		}
		// A cut frame: a good one may begin inside what seemed to be its payload.
		d.buf.Drop(1)
	}
}

func parseHeader(b []byte) (f frame, length int, sum uint32, ok bool) {
	le := binary.LittleEndian
	if crc32.Checksum(b[:48], castagnoli) != le.Uint32(b[48:]) {
		return f, 0, 0, false
	}
	n := le.Uint32(b[40:])
	if n > maxPayload {
		return f, 0, 0, false
	}
	f = frame{
		kind: frameType(b[4]), version: b[5], features: le.Uint16(b[6:]), nonce: le.Uint64(b[8:]),
		seq: le.Uint64(b[16:]), recv: le.Uint64(b[24:]), limit: le.Uint64(b[32:]),
	}
	return f, int(n), le.Uint32(b[44:]), true
}
