package vmmtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm"
)

// Tell prints the figures in a line that tools/bench-vmm.sh looks for.
func (f *Figures) Tell(w io.Writer) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nFIGURES %s\n", line)
	return err
}

// Rounds is how often figures are taken, and at which sizes of RAM: once at the smallest,
// which shows that they can be, unless GODWIT_BENCH_ROUNDS or the ground wants more.
func Rounds() (rounds int, sizes []uint64) {
	rounds, err := strconv.Atoi(os.Getenv("GODWIT_BENCH_ROUNDS"))
	if err != nil && os.Getenv("GODWIT_GROUND") != "nested" {
		return 1, []uint64{256 << 20}
	}
	return cmp.Or(rounds, 7), []uint64{256 << 20, 1 << 30, 4 << 30}
}

// Figure is what an operation cost, every sample of it, in milliseconds.
type Figure struct {
	Name    string    `json:"name"`
	Memory  uint64    `json:"memory"` // of the VM, in MiB
	Samples []float64 `json:"samples"`
	Missing string    `json:"missing,omitempty"` // why there are none
}

// Figures are of one VMM on one ground.
type Figures struct {
	Facts   vmm.Facts `json:"facts"`
	Ground  string    `json:"ground,omitempty"`
	Figures []Figure  `json:"figures"`
}

// Measure times what godwit does with a VMM, rounds times at each size of RAM: the guest
// is booted once for each, and no pages are moved.
func Measure(ctx context.Context, env Env, rounds int, sizes ...uint64) (*Figures, error) {
	facts, err := env.Driver.Probe(ctx)
	if err != nil {
		return nil, err
	}
	out := &Figures{Facts: facts, Ground: os.Getenv("GODWIT_GROUND")}
	for _, size := range sizes {
		env.Memory = size
		m := &measure{rounds: rounds, out: out, memory: size >> 20}
		c := Clause{"figures", m.run}
		if err := c.Check(ctx, env); err != nil {
			return nil, fmt.Errorf("%d MiB: %w", size>>20, err)
		}
	}
	return out, nil
}

type measure struct {
	rounds int
	memory uint64
	out    *Figures
}

// time runs do and notes its cost.
func (m *measure) time(name string, do func() error) error {
	begun := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m.note(name, time.Since(begun))
	return nil
}

func (m *measure) note(name string, cost time.Duration) {
	m.figure(name).Samples = append(m.figure(name).Samples, float64(cost.Microseconds())/1000)
}

// figure finds it by name; the list has the order of the first samples.
func (m *measure) figure(name string) *Figure {
	for i := range m.out.Figures {
		if f := &m.out.Figures[i]; f.Name == name && f.Memory == m.memory {
			return f
		}
	}
	m.out.Figures = append(m.out.Figures, Figure{Name: name, Memory: m.memory, Samples: []float64{}})
	return &m.out.Figures[len(m.out.Figures)-1]
}

func (m *measure) run(ctx context.Context, b *bench) error {
	var nic vmm.NIC
	v, err := b.config()
	if err != nil {
		return err
	}
	if nic, err = v.addNIC(b); err != nil {
		return err
	}
	v.cfg.NICs = []vmm.NIC{nic}
	err = m.time("start", func() (err error) {
		v.Machine, err = b.env.Driver.Start(ctx, v.cfg)
		return err
	})
	if err != nil {
		return err
	}
	err = m.time("resume to first line", func() error {
		if err := v.Resume(ctx); err != nil {
			return err
		}
		_, err := v.guest.await(ctx, func(tick) bool { return true })
		return err
	})
	if err != nil {
		return err
	}
	for range m.rounds {
		if err := errors.Join(m.plug(ctx, v, nic), m.track(v)); err != nil {
			return err
		}
	}
	return errors.Join(m.restores(ctx, b, v), m.hot(ctx, b))
}

// plug takes the NIC out and puts it in again.
func (m *measure) plug(ctx context.Context, v *vm, nic vmm.NIC) error {
	if err := v.nicSeen(ctx, true); err != nil {
		return err
	}
	if err := m.time("remove NIC, acknowledged", func() error { return v.RemoveNIC(ctx, nic.ID) }); err != nil {
		return err
	}
	if err := v.nicSeen(ctx, false); err != nil {
		return err
	}
	return m.time("add NIC to the guest's line with it", func() error {
		if err := m.time("add NIC, answered", func() error { return v.AddNIC(ctx, nic) }); err != nil {
			return err
		}
		return v.nicSeen(ctx, true)
	})
}

// track clears and reads the soft-dirty bits of RAM while the guest runs.
func (m *measure) track(v *vm) error {
	pid := v.Process().PID
	const clear, read = "soft-dirty: clear", "soft-dirty: read"
	if !softDirty() {
		m.figure(clear).Missing, m.figure(read).Missing = "the kernel has no soft-dirty bits",
			"the kernel has no soft-dirty bits"
		return nil
	}
	err := m.time(clear, func() error {
		return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("4"), 0)
	})
	if err != nil {
		return err
	}
	return m.time(read, func() error { return readPagemap(pid, v.cfg.RAM.Name()) })
}

// softDirty tries it on a page of our own.
func softDirty() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return false
	}
	defer unix.Munmap(page)
	page[0] = 1
	data, err := os.ReadFile("/proc/self/smaps")
	return err == nil && bytes.Contains(data, []byte(" sd")) &&
		os.WriteFile("/proc/self/clear_refs", []byte("4"), 0) == nil
}

// readPagemap reads the entries of every mapping of the file.
func readPagemap(pid int, file string) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	found, page := false, int64(os.Getpagesize())
	for line := range strings.Lines(string(maps)) {
		var begin, end int64
		if !strings.HasSuffix(strings.TrimSpace(line), file) {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x ", &begin, &end); err != nil {
			return err
		}
		found = true
		if _, err := io.Copy(io.Discard, io.NewSectionReader(pagemap, begin/page*8, (end-begin)/page*8)); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("RAM is not mapped")
	}
	return nil
}

// restores saves the VM and loads what was saved into VMs that have its RAM.
func (m *measure) restores(ctx context.Context, b *bench, v *vm) error {
	var state *os.File
	for i := range m.rounds {
		err := m.time("pause", func() error { return v.Pause(ctx) })
		if err == nil {
			err = m.time("save state", func() (err error) { state, err = v.save(ctx); return err })
		}
		if err == nil && i < m.rounds-1 {
			err = m.time("resume", func() error { return v.Resume(ctx) })
		}
		if err != nil {
			return err
		}
	}
	for range m.rounds {
		if err := m.restored(ctx, b, v, state); err != nil {
			return err
		}
	}
	return nil
}

func (m *measure) restored(ctx context.Context, b *bench, v *vm, state *os.File) error {
	w, err := b.config()
	if err != nil {
		return err
	}
	if err := errors.Join(incoming(w), copyFile(w.cfg.RAM, v.cfg.RAM)); err != nil {
		return err
	}
	nic, err := w.addNIC(b)
	if err != nil {
		return err
	}
	w.cfg.NICs = []vmm.NIC{nic}
	if _, err := state.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err = m.time("process start to restored", func() (err error) {
		if w.Machine, err = b.env.Driver.Start(ctx, w.cfg); err != nil {
			return err
		}
		return m.time("load state", func() error { return w.LoadState(ctx, state) })
	})
	if err != nil {
		return err
	}
	if err := w.Kill(ctx); err != nil {
		return err
	}
	return w.cfg.RAM.Truncate(0) // its pages are wanted by the next one
}
