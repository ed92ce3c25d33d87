package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// programs calls f with the pid and arguments of every process of the node. foreign, if
// not nil, remembers which processes are not the node's: looking often must stay cheap.
func (b *bench) programs(foreign map[string]bool, f func(pid int, args []string)) error {
	return programsOf(b.node, foreign, f)
}

func programsOf(node *harness.Node, foreign map[string]bool, f func(pid int, args []string)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || foreign[e.Name()] {
			continue
		}
		if in, below := node.Within(pid); !in && !below {
			if foreign != nil {
				foreign[e.Name()] = true
			}
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		f(pid, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
	}
	return nil
}

// shims are those that serve a task on the node.
func (b *bench) shims() ([]int, error) {
	var found []int
	err := b.programs(nil, func(pid int, args []string) {
		if filepath.Base(args[0]) == "containerd-shim-godwit-v1" && len(args) > 1 && strings.HasPrefix(args[1], "-") {
			found = append(found, pid)
		}
	})
	if err == nil && len(found) == 0 {
		err = errors.New("find the shim: none runs")
	}
	return found, err
}

// noteMemory notes Rss and Pss in MiB, each of the process that has most.
func (b *bench) noteMemory(name string, pids ...int) error {
	var rss, pss float64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return fmt.Errorf("read memory of process %d: %w", pid, err)
		}
		rss, pss = max(rss, field(data, "Rss:")), max(pss, field(data, "Pss:"))
	}
	b.note(name, rss/1024)
	b.note(name+"_pss", pss/1024)
	return nil
}

// field reads a line such as "Rss: 123 kB".
func field(data []byte, name string) float64 {
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) >= 2 && f[0] == name {
			if v, err := strconv.ParseFloat(f[1], 64); err == nil {
				return v
			}
		}
	}
	return nan
}

// cpuWatch adds up the CPU time of the node's workers. They are gone when a command
// returns, so that it reads while they run, and again until they are gone.
type cpuWatch struct {
	stop chan struct{}
	done chan float64
}

// workerArg is how the shim calls itself for the work on pages.
const workerArg = "worker"

const (
	readEvery = 5 * time.Millisecond
	lookEvery = 8 // reads: finding processes costs more, and what it costs the baseline is spared
)

func (b *bench) watchWorkers() *cpuWatch {
	w := &cpuWatch{stop: make(chan struct{}), done: make(chan float64, 1)}
	go func() {
		seen, foreign := map[int]float64{}, map[string]bool{}
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-w.stop:
				sum := 0.0
				for _, s := range seen {
					sum += s
				}
				w.done <- sum
				return
			case <-tick.C:
			}
			if i%lookEvery == 0 {
				_ = b.programs(foreign, func(pid int, args []string) {
					if len(args) > 1 && args[1] == workerArg {
						seen[pid] += 0
					}
				})
			}
			for pid, before := range seen {
				if s, ok := cpuSeconds(pid); ok {
					seen[pid] = max(s, before)
				}
			}
		}
	}()
	return w
}

// seconds ends the watch.
func (w *cpuWatch) seconds() float64 {
	close(w.stop)
	if s := <-w.done; s > 0 {
		return s
	}
	return nan
}

// clockTick is USER_HZ, the same on every Linux that matters here.
const clockTick = 100

// cpuSeconds of a process and the threads it had.
func cpuSeconds(pid int) (float64, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	return parseStat(string(data))
}

func parseStat(stat string) (float64, bool) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0, false
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / clockTick, err1 == nil && err2 == nil
}
