package qcow2

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
)

const (
	testBits = 12
	cluster  = 1 << testBits
	// testSize ends within its tenth cluster.
	testSize = 9*cluster + 1000
)

// kinds of clusters.
type kind int

const (
	hole kind = iota
	plain
	packed
	zeros // flagged as zeros; its cluster has stale content
)

func pattern(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, cluster) }

// build makes an image of version 2 or 3 and the disk that it holds.
func build(t testing.TB, version uint32, zstandard bool, kinds [10]kind) (image, disk []byte) {
	t.Helper()
	image, disk = make([]byte, 3*cluster), make([]byte, testSize)
	be := binary.BigEndian
	copy(image, magic)
	be.PutUint32(image[4:], version)
	be.PutUint32(image[20:], testBits)
	be.PutUint64(image[24:], testSize)
	be.PutUint32(image[36:], 1)
	be.PutUint64(image[40:], cluster) // first table
	be.PutUint64(image[cluster:], 2*cluster|1<<63)
	if version == 3 {
		be.PutUint32(image[96:], 4)
		be.PutUint32(image[100:], 112)
		if zstandard {
			be.PutUint64(image[72:], compression)
			image[104] = 1
		}
	}
	for i, k := range kinds {
		entry := image[2*cluster+8*i:]
		switch at := uint64(len(image)); k {
		case plain, zeros:
			be.PutUint64(entry, at|1<<63)
			if k == zeros {
				be.PutUint64(entry, at|1<<63|zero)
			} else {
				copy(disk[i*cluster:], pattern(i))
			}
			image = append(image, pattern(i)...)
		case packed:
			data := pack(t, pattern(i), zstandard)
			sectors := uint64(len(data)-1) / 512
			be.PutUint64(entry, compressed|at|sectors<<(62-(testBits-8)))
			copy(disk[i*cluster:], pattern(i))
			image = append(image, data...)
			image = append(image, make([]byte, (cluster-len(image)%cluster)%cluster)...)
		}
	}
	return image, disk
}

func pack(t testing.TB, data []byte, zstandard bool) []byte {
	t.Helper()
	var out bytes.Buffer
	if zstandard {
		w, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(data)
		w.Close()
		return out.Bytes()
	}
	w, err := flate.NewWriter(&out, 9)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	w.Close()
	return out.Bytes()
}

func open(image []byte) (*Image, error) {
	return Open(bytes.NewReader(image), int64(len(image)), 1<<40)
}

// read answers the disk that is in an image.
func read(ctx context.Context, m *Image) ([]byte, error) {
	disk := make([]byte, m.Size)
	return disk, m.Each(ctx, func(at int64, data []byte) error {
		copy(disk[at:], data)
		return nil
	})
}

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		version   uint32
		zstandard bool
		kinds     [10]kind
		allocated int64
	}{
		"empty":      {2, false, [10]kind{}, 0},
		"plain":      {2, false, [10]kind{plain, hole, plain, 9: plain}, 3},
		"compressed": {2, false, [10]kind{packed, plain, packed, 9: packed}, 4},
		"version 3":  {3, false, [10]kind{packed, zeros, plain, zeros}, 2},
		"zstandard":  {3, true, [10]kind{packed, zeros, plain, 9: packed}, 3},
		"all clusters": {3, true, [10]kind{packed, packed, packed, packed, packed, plain, plain, plain, plain, plain},
			10},
		"flag of version 3":   {3, false, [10]kind{zeros, zeros}, 0},
		"compressed and last": {2, false, [10]kind{9: packed}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			image, want := build(t, tt.version, tt.zstandard, tt.kinds)
			m, err := open(image)
			if err != nil {
				t.Fatal(err)
			}
			got, err := read(t.Context(), m)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("read %d bytes, %v; equal: %t", len(got), err, bytes.Equal(got, want))
			}
			if n, err := m.Allocated(t.Context()); err != nil || n != tt.allocated*cluster {
				t.Errorf("allocated %d, %v", n, err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := read(ended, m); err == nil {
				t.Error("a read goes on after its caller")
			}
		})
	}
	// Its last cluster may be cut where the file ends: the rest is zeros.
	image, want := build(t, 2, false, [10]kind{plain, 2: plain})
	m, err := open(image[:len(image)-100])
	if err != nil {
		t.Fatal(err)
	}
	clear(want[3*cluster-100 : 3*cluster])
	if got, err := read(t.Context(), m); err != nil || !bytes.Equal(got, want) {
		t.Errorf("cut in the last cluster: %v", err)
	}
}

// TestRefused (issue 5, bad input): every image that would be read wrong is refused, and
// says why.
func TestRefused(t *testing.T) {
	be := binary.BigEndian
	for name, tt := range map[string]struct {
		spoil func(image []byte) []byte
		is    func(error) bool
		want  string
	}{
		"empty":      {func([]byte) []byte { return nil }, errdefs.IsInvalidArgument, "no header"},
		"no magic":   {func(i []byte) []byte { i[0] = 0; return i }, errdefs.IsInvalidArgument, "no header"},
		"cut header": {func(i []byte) []byte { return i[:80] }, errdefs.IsInvalidArgument, "header is cut"},
		"version":    {func(i []byte) []byte { be.PutUint32(i[4:], 4); return i }, errdefs.IsNotImplemented, "version 4"},
		"backing file": {func(i []byte) []byte {
			be.PutUint64(i[8:], 500)
			be.PutUint32(i[16:], 11)
			copy(i[500:], "/etc/shadow")
			return i
		}, errdefs.IsNotImplemented, `backing file "/etc/shadow"`},
		"backing file nowhere": {func(i []byte) []byte {
			be.PutUint64(i[8:], math.MaxUint64)
			be.PutUint32(i[16:], math.MaxUint32)
			return i
		},
			errdefs.IsNotImplemented, "backing file"},
		"encrypted": {func(i []byte) []byte {
			be.PutUint32(i[32:], 2)
			return i
		}, errdefs.IsNotImplemented, "encrypted"},
		"external data": {func(i []byte) []byte {
			be.PutUint64(i[72:], externalData)
			return i
		}, errdefs.IsNotImplemented, "external data file"},
		"corrupt": {func(i []byte) []byte {
			be.PutUint64(i[72:], corrupt)
			return i
		}, errdefs.IsInvalidArgument, "corrupt"},
		"subclusters": {func(i []byte) []byte {
			be.PutUint64(i[72:], extendedL2)
			return i
		}, errdefs.IsNotImplemented, "subclusters"},
		"unknown feature": {func(i []byte) []byte {
			be.PutUint64(i[72:], 1<<40)
			return i
		}, errdefs.IsNotImplemented, "0x10000000000"},
		"compression": {func(i []byte) []byte {
			be.PutUint64(i[72:], compression)
			i[104] = 7
			return i
		}, errdefs.IsNotImplemented, "compression type 7"},
		"small clusters": {func(i []byte) []byte { be.PutUint32(i[20:], 8); return i }, errdefs.IsInvalidArgument, "2^8"},
		"huge clusters": {func(i []byte) []byte {
			be.PutUint32(i[20:], 63)
			return i
		}, errdefs.IsInvalidArgument, "2^63"},
		"no size": {func(i []byte) []byte {
			be.PutUint64(i[24:], 0)
			return i
		}, errdefs.IsInvalidArgument, "disk of 0 bytes"},
		"absurd size": {func(i []byte) []byte {
			be.PutUint64(i[24:], 1<<62)
			return i
		}, errdefs.IsInvalidArgument, "disk of 4611686018427387904 bytes"},
		"larger than table": {func(i []byte) []byte {
			be.PutUint64(i[24:], 1<<32)
			return i
		}, errdefs.IsInvalidArgument, "first table has 1"},
		"table elsewhere": {func(i []byte) []byte {
			be.PutUint64(i[40:], math.MaxUint64-7)
			return i
		}, errdefs.IsInvalidArgument, "first table is cut"},
		"second table cut": {func(i []byte) []byte { return i[:2*cluster+100] }, errdefs.IsInvalidArgument, "it is cut"},
		"second table askew": {func(i []byte) []byte {
			be.PutUint64(i[cluster:], 512)
			return i
		}, errdefs.IsInvalidArgument, "none's place"},
		"cluster cut": {func(i []byte) []byte { return i[:3*cluster] }, errdefs.IsInvalidArgument, "it is cut"},
		"cluster elsewhere": {func(i []byte) []byte {
			be.PutUint64(i[2*cluster:], 1<<50)
			return i
		}, errdefs.IsInvalidArgument, "it is cut"},
		"cluster askew": {func(i []byte) []byte {
			be.PutUint64(i[2*cluster:], 3*cluster+512)
			return i
		}, errdefs.IsInvalidArgument, "none's place"},
		"garbage compressed": {func(i []byte) []byte {
			be.PutUint64(i[2*cluster:], compressed|3*cluster|7<<(62-(testBits-8)))
			return i
		},
			errdefs.IsInvalidArgument, "compressed cluster"},
		"compressed elsewhere": {func(i []byte) []byte {
			be.PutUint64(i[2*cluster:], compressed|1<<50)
			return i
		}, errdefs.IsInvalidArgument, "it is cut"},
	} {
		t.Run(name, func(t *testing.T) {
			image, _ := build(t, 3, false, [10]kind{plain, plain})
			m, err := open(tt.spoil(image))
			if err == nil {
				_, err = read(t.Context(), m)
			}
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want its class and %q", err, tt.want)
			}
		})
	}
}

// FuzzRead: whatever a file says, reading it ends, without a panic, within the disk.
func FuzzRead(f *testing.F) {
	for _, zstandard := range []bool{false, true} {
		image, _ := build(f, 3, zstandard, [10]kind{plain, packed, zeros, 9: packed})
		f.Add(image)
	}
	image, _ := build(f, 2, false, [10]kind{packed, plain})
	f.Add(image)
	f.Fuzz(func(t *testing.T, image []byte) {
		m, err := Open(bytes.NewReader(image), int64(len(image)), 1<<24)
		if err != nil {
			return
		}
		_ = m.Each(t.Context(), func(at int64, data []byte) error {
			if at < 0 || at+int64(len(data)) > m.Size {
				t.Fatalf("%d bytes at %d of a disk of %d", len(data), at, m.Size)
			}
			return nil
		})
	})
}
