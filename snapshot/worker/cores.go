package worker

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

// cores tells whether those of the host have time to spare. Its file is opened before the job
// is confined.
type cores struct {
	stat *os.File // /proc/stat; nil: not known

	mu         sync.Mutex
	looked     time.Time
	idle, both uint64 // ticks until then, of which idle; of all cores
	spare      bool
}

const (
	coresEvery = 200 * time.Millisecond // between two looks
	coresSpare = 10                     // one part in so many that is idle is time to spare
)

func openCores() *cores {
	f, err := os.Open("/proc/stat")
	if err != nil {
		f = nil
	}
	c := &cores{stat: f, spare: true}
	c.Spare() // the first look, so that the first question is answered by two
	return c
}

// Spare reports whether a tenth of the cores' time was idle between the last two looks. Without
// two of them, or where the kernel does not say, it is.
func (c *cores) Spare() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stat == nil || time.Since(c.looked) < coresEvery {
		return c.spare
	}
	c.looked = time.Now()
	head := make([]byte, 256)
	n, _ := c.stat.ReadAt(head, 0)
	idle, both, ok := ticks(head[:n])
	if !ok {
		return c.spare
	}
	if c.both > 0 && both > c.both {
		c.spare = idle > c.idle && (idle-c.idle)*coresSpare >= both-c.both
	}
	c.idle, c.both = idle, both
	return c.spare
}

// ticks reads the first line of /proc/stat (proc_stat(5)): the time of all cores as user, nice,
// system, idle, iowait, irq, softirq and steal; what follows is part of the first two.
func ticks(head []byte) (idle, both uint64, ok bool) {
	line, _, ok := bytes.Cut(head, []byte("\n"))
	fields := bytes.Fields(line)
	if !ok || len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, false
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return 0, 0, false
		}
		both += n
		if i == 3 || i == 4 { // idle, and idle with something to wait for
			idle += n
		}
	}
	return idle, both, true
}
