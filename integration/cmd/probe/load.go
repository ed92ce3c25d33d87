package main

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// soilSize is the memory that soil writes to: enough that no page comes up again at once.
const soilSize = 512 << 20

// soil writes to so many MiB of pages a second, one after the other.
func soil(perSecond int) {
	if perSecond <= 0 {
		return
	}
	memory := make([]byte, soilSize)
	const each = 10 * time.Millisecond
	begun, done := time.Now(), 0
	for n := uint64(1); ; {
		for due := int(time.Since(begun).Seconds() * float64(perSecond<<20)); done < due; done += churnPage {
			binary.LittleEndian.PutUint64(memory[done%soilSize:], n)
			n++
		}
		if behind := int(time.Since(begun).Seconds()*float64(perSecond<<20)) - done; behind > 64<<20 { // it stood still
			begun, done = time.Now(), done%soilSize/churnPage*churnPage
			begun = begun.Add(-time.Duration(float64(done) / float64(perSecond<<20) * float64(time.Second)))
		}
		time.Sleep(each)
	}
}

// What readDirect reads: pieces of a file, each into another place of memory.
const (
	directFile  = 8 << 20
	directRead  = 64 << 10
	directSpace = 32 << 20
)

// readDirect makes a file of random bytes, and reads it past the page cache all the time.
func readDirect(path string) error {
	data := make([]byte, directFile)
	if _, err := rand.Read(data); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		return fmt.Errorf("open %s past the page cache: %w", path, err)
	}
	space := make([]byte, directSpace+churnPage)
	space = space[-uintptr(unsafe.Pointer(&space[0]))%churnPage:][:directSpace]
	go func() {
		for {
			to, from := mathrand.IntN(directSpace/directRead)*directRead, mathrand.Int64N(directFile/directRead)*directRead
			if _, err := f.ReadAt(space[to:to+directRead], from); err != nil {
				log.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return nil
}
