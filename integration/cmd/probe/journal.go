package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

// journal is a file of numbered lines. A lost, doubled or torn line is an error.
type journal struct {
	mu    sync.Mutex
	path  string
	stamp string
	file  *os.File
	lines int
	err   error
}

func openJournal(path, stamp string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &journal{path: path, stamp: stamp, file: f}, nil
}

func (j *journal) line(n int) string { return fmt.Sprintf("%d %s", n, j.stamp) }

func (j *journal) add() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return
	}
	j.lines++
	_, j.err = fmt.Fprintln(j.file, j.line(j.lines))
}

// check reads the whole file back through the disk.
func (j *journal) check() (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.lines, j.err
	}
	f, err := os.Open(j.path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		n++
		if s.Text() != j.line(n) {
			return n, fmt.Errorf("line %d of %s is %q", n, j.path, s.Text())
		}
	}
	if n != j.lines {
		return n, fmt.Errorf("%s has %d lines, %d were written", j.path, n, j.lines)
	}
	return n, nil
}
