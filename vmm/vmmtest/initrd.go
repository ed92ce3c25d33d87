package vmmtest

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// guestInit is PID 1 of the test guest: it says a line again and again.
//
//go:embed init.sh
var guestInit []byte

// guestModules are what the guest loads, with what they need.
var guestModules = []string{"virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio-rng", "pvpanic-mmio",
	"pvpanic-pci"}

// BuildInitrd writes the test guest's initramfs to path. busybox is a static binary,
// modules an unpacked /lib/modules/VERSION with its modules.dep.
func BuildInitrd(path, busybox, modules string) error {
	var archive cpio
	archive.dir("bin", "dev", "proc", "sys", "lib")
	data, err := os.ReadFile(busybox)
	if err != nil {
		return fmt.Errorf("build initrd: %w", err)
	}
	archive.file("bin/busybox", 0o755, data)
	order, err := loadOrder(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return fmt.Errorf("build initrd: %w", err)
	}
	var list strings.Builder
	for i, module := range order {
		data, err := os.ReadFile(filepath.Join(modules, module))
		if err != nil {
			return fmt.Errorf("build initrd: %w", err)
		}
		name := fmt.Sprintf("lib/%02d.ko", i)
		archive.file(name, 0o644, data)
		fmt.Fprintln(&list, "/"+name)
	}
	archive.file("lib/list", 0o644, []byte(list.String()))
	archive.file("init", 0o755, guestInit)
	return os.WriteFile(path, archive.end(), 0o644)
}

// loadOrder is guestModules with each one's needs before it.
func loadOrder(modulesDep string) ([]string, error) {
	f, err := os.Open(modulesDep)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	needs := map[string][]string{} // by name: its own path, then what it needs, nearest first
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		path, deps, _ := strings.Cut(lines.Text(), ":")
		name := strings.TrimSuffix(filepath.Base(path), ".ko")
		needs[name] = append([]string{path}, strings.Fields(deps)...)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var order []string
	for _, name := range guestModules {
		paths, ok := needs[name]
		if !ok {
			return nil, errors.New("no module " + name)
		}
		for _, path := range slices.Backward(paths) {
			if !slices.Contains(order, path) {
				order = append(order, path)
			}
		}
	}
	return order, nil
}

// cpio is an archive in the newc format.
type cpio struct {
	buf bytes.Buffer
	ino int
}

func (c *cpio) dir(names ...string) {
	for _, name := range names {
		c.entry(name, 0o040755, nil)
	}
}

func (c *cpio) file(name string, mode uint32, data []byte) { c.entry(name, 0o100000|mode, data) }

func (c *cpio) entry(name string, mode uint32, data []byte) {
	c.ino++
	fmt.Fprintf(&c.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.buf.WriteString(name + "\x00")
	c.pad()
	c.buf.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

func (c *cpio) end() []byte {
	c.entry("TRAILER!!!", 0, nil)
	return c.buf.Bytes()
}
