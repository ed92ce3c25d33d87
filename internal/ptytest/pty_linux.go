// Package ptytest gives tests a pseudo terminal.
package ptytest

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is one that a program under test writes to.
type Terminal struct {
	TTY *os.File // the program's end

	far     io.Writer
	reading sync.WaitGroup
	mu      sync.Mutex
	text    []byte
}

// Open a terminal of so many columns, and 24 rows. It is closed at the end of the test.
func Open(t testing.TB, columns int) *Terminal {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	size := &unix.Winsize{Row: 24, Col: uint16(columns)}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
	term := &Terminal{TTY: tty, far: far}
	term.reading.Go(func() { term.read(far) })
	t.Cleanup(func() { _ = tty.Close(); term.reading.Wait(); _ = far.Close() })
	return term
}

// read until the last program has closed its end: the terminal answers EIO then.
func (t *Terminal) read(far io.Reader) {
	part := make([]byte, 4096)
	for {
		n, err := far.Read(part)
		t.mu.Lock()
		t.text = append(t.text, part[:n]...)
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Shown closes the program's end and answers all that it has written, with plain ends of lines.
func (t *Terminal) Shown() string {
	_ = t.TTY.Close()
	t.reading.Wait()
	return strings.ReplaceAll(t.Now(), "\r\n", "\n")
}

// Type what a user types.
func (t *Terminal) Type(text string) error {
	_, err := io.WriteString(t.far, text)
	return err
}

// Now is what was written until now.
func (t *Terminal) Now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
