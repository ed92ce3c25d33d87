package agentd

import (
	"errors"
	"fmt"
	"os"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"golang.org/x/sys/unix"
)

// streams are the ends of the process's stdio.
type streams struct {
	child  [3]*os.File
	stdin  *os.File
	output [2]*os.File
}

// openStreams makes pipes for what the host wants and /dev/null for the rest.
func openStreams(r *agentv1.StartRequest) (s *streams, err error) {
	s = new(streams)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i, wanted := range []bool{r.Stdin, r.Stdout, r.Stderr} {
		if !wanted {
			if s.child[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
				return nil, fmt.Errorf("open stream: %w", err)
			}
			continue
		}
		rd, wr, err := pipe(i == 0)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			s.child[0], s.stdin = rd, wr
		} else {
			s.child[i], s.output[i-1] = wr, rd
		}
	}
	return s, nil
}

// pipeSize is what a process can write before it waits for the agent: each wait is a
// switch between the two.
const pipeSize = 1 << 20

// pipe returns a pipe whose end of ours is non-blocking and whose other end blocks.
func pipe(oursWrites bool) (rd, wr *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	ours := 0
	if oursWrites {
		ours = 1
	}
	err = unix.SetNonblock(fds[ours], true)
	if err == nil && !oursWrites {
		_, err = unix.FcntlInt(uintptr(fds[ours]), unix.F_SETPIPE_SZ, pipeSize)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make pipe: %w", err), unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

func (s *streams) childFDs() []int {
	var fds []int
	for _, f := range s.child {
		fds = append(fds, int(f.Fd()))
	}
	return fds
}

// closeChild closes the child's ends, without which no end of file is ever seen.
func (s *streams) closeChild() {
	for _, f := range s.child {
		f.Close()
	}
}

func (s *streams) closeOurs() {
	for _, f := range []*os.File{s.stdin, s.output[0], s.output[1]} {
		if f != nil {
			f.Close()
		}
	}
}

func (s *streams) close() {
	for _, f := range s.child {
		if f != nil {
			f.Close()
		}
	}
	s.closeOurs()
}
