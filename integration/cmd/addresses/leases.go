package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// leases is a directory with one for each address that is taken, and in it one file for each container that has it.
type leases string

// lock orders the plugins of all nodes, until unlock.
func (l leases) lock() (unlock func(), err error) {
	if err := os.MkdirAll(string(l), 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(string(l), "lock"))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// take answers the address that was asked for, else the first that is free. While there is a file "deaf" in the
// directory, nothing can be asked for.
func (l leases) take(container string, asked []string) (string, error) {
	unlock, err := l.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	_, deaf := os.Stat(filepath.Join(string(l), "deaf"))
	if len(asked) > 0 && deaf != nil {
		address, err := netip.ParseAddr(asked[0])
		if err != nil {
			return "", err
		}
		return address.String(), l.note(address.String(), container)
	}
	for n := 10; n < 250; n++ {
		address := first + strconv.Itoa(n)
		if _, err := os.Stat(filepath.Join(string(l), address)); errors.Is(err, fs.ErrNotExist) {
			return address, l.note(address, container)
		}
	}
	return "", fmt.Errorf("no address of %s0 is free", first)
}

func (l leases) note(address, container string) error {
	if err := os.MkdirAll(filepath.Join(string(l), address), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(string(l), address, container), nil, 0o600)
}

// giveBack frees what a container has. An address that another one has is not free yet.
func (l leases) giveBack(container string) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	all, err := filepath.Glob(filepath.Join(string(l), "*", container))
	if err != nil {
		return err
	}
	for _, file := range all {
		if err := os.Remove(file); err != nil {
			return err
		}
		if err := os.Remove(filepath.Dir(file)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}
