package main

import (
	"crypto/rand"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// churn is what a program does all day, as a snapshot sees it. It writes so many new pages a
// second, and makes files and heap anew with what they held.
type churn struct {
	pages atomic.Uint64
	fresh []byte
	heap  []byte
}

const (
	churnPage  = 4096
	churnFresh = 16 << 20
	churnSame  = 1 << 20
)

func (c *churn) run(perSecond int, dir string) {
	if perSecond <= 0 {
		return
	}
	c.fresh = make([]byte, churnFresh)
	same := make([]byte, churnSame)
	if _, err := rand.Read(same); err != nil {
		log.Fatal(err)
	}
	for range time.Tick(time.Second / time.Duration(perSecond)) {
		n := c.pages.Load()
		at := int(n) * churnPage % churnFresh
		if _, err := rand.Read(c.fresh[at : at+churnPage]); err != nil {
			log.Fatal(err)
		}
		c.pages.Store(n + 1)
		if n%uint64(perSecond) != 0 {
			continue
		}
		c.heap = append([]byte(nil), same...)
		if err := rewrite(filepath.Join(dir, "churn"), same); err != nil {
			log.Fatal(err)
		}
	}
}

func rewrite(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
