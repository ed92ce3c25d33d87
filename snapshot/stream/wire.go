// Package stream is what the two ends of a live move say to each other. It carries frames of
// pages, of the device state, of read-only disks and of the page table. Each frame is verified
// before its bytes reach a file. It runs over TLS whose ends know each other's one certificate.
// docs/dev/protocols/move.md describes it.
package stream

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"github.com/zeebo/blake3"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
)

// Kind of a frame.
type Kind uint8

// Kinds. Accept, Ready and Reached come from the destination.
const (
	KindHello   Kind = 1  // JSON: Hello
	KindPages   Kind = 2  // up to 16 pages of one space
	KindZeros   Kind = 3  // runs of pages of one space that are zero now
	KindBarrier Kind = 4  // what follows replaces what came before
	KindDisk    Kind = 5  // bytes of a read-only disk, in order
	KindState   Kind = 6  // bytes of the device state, in order
	KindEnd     Kind = 7  // JSON: End
	KindAccept  Kind = 8  // JSON: Accept
	KindReady   Kind = 9  // JSON: Ready
	KindFailed  Kind = 10 // JSON: Failed; from either end
	KindTable   Kind = 11 // bytes of the page table, in order
	KindReached Kind = 12 // JSON: Reached
)

// A frame is a head and a body, all numbers little-endian:
//
//	kind u8, codec u8, space u16, length of the body u32, number of the frame u64,
//	BLAKE3 of the first 8 bytes and the body
const (
	headSize = 16 + 32
	sealed   = 8 // bytes of the head that its own hash covers
	// maxBody is that of a frame of pages that do not shrink, and of every other frame.
	maxBody = 128 << 10
	// chunk is what a frame holds of a disk or the state.
	chunk = 64 << 10
	// maxRuns of a frame of zeros.
	maxRuns = 1024
	// maxSpaces and maxDisks bound a hello.
	maxSpaces = 64
	maxDisks  = 64
)

// Ref says which VM is moved by which attempt.
type Ref struct {
	VM         string `json:"vm"`
	UID        string `json:"uid"`
	Operation  string `json:"operation"`
	Attempt    uint32 `json:"attempt"`
	Generation uint64 `json:"generation"`
}

// Hello says what will come.
type Hello struct {
	Version int    `json:"version"`
	Ref     Ref    `json:"ref"`
	Spaces  []Area `json:"spaces"`
	Disks   []Blob `json:"disks,omitempty"`
	Table   int64  `json:"table,omitempty"` // bytes of the VM's page table; 0: it has none
	// Reached asks for an answer to each barrier.
	Reached bool `json:"reached,omitempty"`
}

// Area is an address space: RAM, or a writable disk.
type Area struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Blob is a read-only disk.
type Blob struct {
	ID     string        `json:"id"`
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// Accept names the read-only disks that the destination lacks, and says whether it takes
// the page table and answers barriers: one of a build that knows of neither does not.
type Accept struct {
	Disks   []string `json:"disks,omitempty"`
	Table   bool     `json:"table,omitempty"`
	Reached bool     `json:"reached,omitempty"`
}

// Reached says that all that came before a barrier, counted from 1, is where it belongs.
type Reached struct {
	Barrier uint64 `json:"barrier"`
}

// End says that nothing more comes. Sum is the digest of all frames before it.
type End struct {
	Sum    string          `json:"sum"`
	Resume json.RawMessage `json:"resume,omitempty"`
}

// Ready says that all has come and is loaded. Digest is that of all frames of the source.
type Ready struct {
	Digest string `json:"digest"`
}

// Failed says why an end has given up.
type Failed struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

// Frame is one as it came, its hash not looked at yet.
type Frame struct {
	Kind  Kind
	Codec format.Codec
	Space int
	Body  []byte // valid until Free

	head [headSize]byte
	free func()
}

// Verify wants the frame to be what its sender made.
func (f *Frame) Verify() error {
	if sumOf(f.head[:sealed], f.Body) != [32]byte(f.head[16:]) {
		return fmt.Errorf("stream: frame %d: hash of its bytes differs: %w", binary.LittleEndian.Uint64(f.head[8:]),
			errdefs.ErrDataLoss)
	}
	return nil
}

// Free gives the body's memory back.
func (f *Frame) Free() {
	if f.free != nil {
		f.free()
		f.free = nil
	}
}

func sumOf(head, body []byte) (sum [32]byte) {
	h := blake3.New()
	_, _ = h.Write(head)
	_, _ = h.Write(body)
	h.Sum(sum[:0])
	return sum
}

// transcript is the digest of all frames of one direction, in their order.
type transcript struct{ sum *blake3.Hasher }

func newTranscript() transcript { return transcript{blake3.New()} }

func (t transcript) add(head []byte) { _, _ = t.sum.Write(head) }

func (t transcript) text() string { return fmt.Sprintf("%x", t.sum.Sum(nil)) }

// DigestPrefix begins the digest of a stream, in the place where that of a snapshot stands.
const DigestPrefix = record.StreamPrefix

func broken(text string, args ...any) error {
	return fmt.Errorf("stream: "+text+": %w", append(args, errdefs.ErrDataLoss)...)
}

func (h *Hello) validate() error {
	switch {
	case h.Version != version.Pages:
		return fmt.Errorf("stream: version %d, this build knows %d: %w", h.Version, version.Pages, errdefs.ErrNotImplemented)
	case len(h.Spaces) == 0 || len(h.Spaces) > maxSpaces || len(h.Disks) > maxDisks:
		return broken("%d spaces and %d disks", len(h.Spaces), len(h.Disks))
	}
	return nil
}
