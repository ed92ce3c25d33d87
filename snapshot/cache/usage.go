package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/internal/filelock"
)

// Usage counts what a cache was good for.
type Usage struct {
	Hits         uint64 `json:"hits,omitempty"`
	HitBytes     uint64 `json:"hitBytes,omitempty"`
	Misses       uint64 `json:"misses,omitempty"`
	Damaged      uint64 `json:"damaged,omitempty"`
	KeptBytes    uint64 `json:"keptBytes,omitempty"`
	EvictedBytes uint64 `json:"evictedBytes,omitempty"`
	UnkeptBytes  uint64 `json:"unkeptBytes,omitempty"`

	// Unkept is why, the last time, of one job; it is not counted.
	Unkept string `json:"unkept,omitempty"`
}

const usageFile = "usage"

// Note adds to the counts. They are of all processes and stay after their end; a host that stops
// may lose them.
func (c *Cache) Note(u Usage) (err error) {
	if u == (Usage{}) {
		return nil
	}
	f, err := os.OpenFile(c.path(usageFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("note use of the cache: %w", err)
	}
	defer f.Close()
	if err := filelock.Lock(f, unix.LOCK_EX); err != nil {
		return fmt.Errorf("note use of the cache: %w", err)
	}
	sum, err := c.Usage()
	if err != nil {
		sum = Usage{} // counted anew
	}
	sum.Hits += u.Hits
	sum.HitBytes += u.HitBytes
	sum.Misses += u.Misses
	sum.KeptBytes += u.KeptBytes
	sum.Damaged += u.Damaged
	sum.EvictedBytes += u.EvictedBytes
	sum.UnkeptBytes += u.UnkeptBytes
	data, err := json.Marshal(sum)
	if err == nil {
		// As long as before or longer: a reader in between sees a number of either.
		data = append(data, '\n')
		_, err = f.WriteAt(data, 0)
		err = errors.Join(err, f.Truncate(int64(len(data))))
	}
	if err != nil {
		return fmt.Errorf("note use of the cache: %w", err)
	}
	return nil
}

// Usage returns the counts.
func (c *Cache) Usage() (u Usage, err error) {
	data, err := os.ReadFile(c.path(usageFile))
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &u)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("read use of the cache: %w", err)
	}
	return u, nil
}

// Size returns how many bytes the cache takes, and its limit.
func (c *Cache) Size() (total, limit int64, err error) {
	entries, _, err := c.list()
	for _, e := range entries {
		total += e.size
	}
	return total, c.max, err
}
