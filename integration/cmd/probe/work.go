package main

import (
	"crypto/rand"
	"encoding/binary"
	"io/fs"
	"log"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// What the workload does each second: pages of new random content, and pages of its memory
// that change places; it writes a file anew, with the content that it has.
const (
	pageSize  = 4096
	newPages  = 20
	swapped   = 256
	rewritten = 1 << 20
	ringPages = 120 * newPages
)

// workload is memory and a page cache like those of a program with a lot of data.
type workload struct {
	source []byte // of files
	heap   []byte
	ring   []byte
	file   string
}

// newWorkload reads all files below dir, which fills the page cache, and has a heap of size
// bytes with pieces of them.
func newWorkload(dir, file string, size int) (*workload, error) {
	w := &workload{file: file, ring: make([]byte, ringPages*pageSize)}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		w.source = append(w.source, data...)
		return err
	})
	if err != nil {
		return nil, err
	}
	w.heap = records(size, w.source)
	return w, nil
}

// records is memory as programs have it: records of an address, a length, a number and
// something out of source, every eighth part of it not used yet.
func records(size int, source []byte) []byte {
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	m := make([]byte, size)
	for at := 0; at+512 < size; {
		r := rng.Uint64()
		n := 32 + int(r%224)
		binary.LittleEndian.PutUint64(m[at:], 0xc000000000|r>>20&^7&0xfffffff)
		m[at+8] = byte(n)
		binary.LittleEndian.PutUint32(m[at+16:], uint32(r>>32))
		copy(m[at+24:at+24+n], source[int(r>>24)%(len(source)-n):])
		at += (24 + n + 7) &^ 7
		if at&(1<<20-1) > 7<<17 {
			at = (at>>20 + 1) << 20
		}
	}
	return m
}

func (w *workload) run() {
	rng := mathrand.New(mathrand.NewPCG(3, 4))
	for n := 0; ; n++ {
		at := n * newPages % ringPages * pageSize
		if _, err := rand.Read(w.ring[at : at+newPages*pageSize]); err != nil {
			log.Fatal(err)
		}
		if pages := len(w.heap) / pageSize; pages > 0 {
			for range swapped {
				w.swap(rng.IntN(pages), rng.IntN(pages))
			}
		}
		if err := os.WriteFile(w.file, w.source[:min(rewritten, len(w.source))], 0o644); err != nil {
			log.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

func (w *workload) swap(i, j int) {
	a, b := w.heap[i*pageSize:(i+1)*pageSize], w.heap[j*pageSize:(j+1)*pageSize]
	var t [pageSize]byte
	copy(t[:], a)
	copy(a, b)
	copy(b, t[:])
}
