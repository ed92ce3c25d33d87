package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
)

// verify compares both RAM files of a move between its commit and the resume: godwitd of the destination is held
// (SIGSTOP) while pages go, which takes no part in that, so that the task is not started there. The source's VMM stands
// since the vote.
func (b *liveBench) verify(ctx context.Context, direct bool) error {
	suffix, flags := "", []string{"-dirty", "20"}
	if direct {
		suffix, flags = "_direct", append(flags, "-direct", "/data/direct")
	}
	if err := b.boot(ctx, shape{ram: 1536, resident: 300, idle: liveIdle}, "auto", flags...); err != nil {
		return err
	}
	type end struct {
		w   moveWord
		err error
	}
	done := make(chan end, 1)
	go func() {
		w, err := b.moves(ctx, "migrate", liveVM, "--to", b.there.Name, "--mode", "live", "--bandwidth", "100MiB")
		done <- end{w, err}
	}()
	daemon := b.there.Godwitd.PID()
	defer unix.Kill(daemon, unix.SIGCONT) //nolint:errcheck // it may run
	var differ int
	err := b.reach(ctx, func(phase string, sending bool) bool { return sending })
	if err == nil {
		err = unix.Kill(daemon, unix.SIGSTOP)
	}
	if err == nil {
		err = b.reach(ctx, func(phase string, _ bool) bool { return phase == "committed" })
	}
	if err == nil {
		differ, err = differing(b.node, b.there, b.say)
	}
	if err := errors.Join(err, unix.Kill(daemon, unix.SIGCONT)); err != nil {
		return err
	}
	moved := <-done
	if moved.err != nil {
		return moved.err
	}
	if err := b.arrived(ctx, 1); err != nil {
		return err
	}
	passes := moved.w.Figures.Passes
	if len(passes) < 2 {
		return fmt.Errorf("a move in %d passes", len(passes))
	}
	b.note("differing_pages"+suffix, float64(differ))
	b.note("last_pass_pages"+suffix, float64(passes[len(passes)-1].Sent/pageSize))
	return b.end(ctx)
}

const pageSize = 4096

// reach waits until the open move is where ok says.
func (b *liveBench) reach(ctx context.Context, ok func(phase string, sending bool) bool) error {
	return harness.Poll(ctx, harness.Slow(time.Minute), func(ctx context.Context) error {
		w, err := b.moves(ctx, "migrations")
		if err != nil {
			return err
		}
		for _, m := range w.Moves {
			if ok(m.Operation.Phase, m.Transfer.Pass > 0) {
				return nil
			}
		}
		return fmt.Errorf("the moves are at %+v", w.Moves)
	})
}

// differing answers how many pages of the RAM file on one node are others on the other, and tells which.
func differing(a, b *harness.Node, say func(string, ...any)) (n int, err error) {
	var files [2]*os.File
	for i, node := range []*harness.Node{a, b} {
		if files[i], err = node.OpenRAM(); err != nil {
			return 0, err
		}
		defer files[i].Close()
	}
	clock := noWallClock
	if harness.VMM() != "qemu" {
		if clock, err = movedWallClock(); err != nil {
			return 0, err
		}
		say("    KVM writes the guest's wall clock to byte %d of page %d", clock%pageSize, clock/pageSize)
	}
	return differ(files[0], files[1], clock, say)
}

// toldPages is of how many pages is told.
const toldPages = 8

// differ counts the pages that differ, by more than the wall clock that KVM has written to a known place.
func differ(a, b io.Reader, clock int64, say func(string, ...any)) (n int, err error) {
	const chunk = 1 << 20
	base := 0
	x, y := make([]byte, chunk), make([]byte, chunk)
	for {
		have, err := io.ReadFull(a, x)
		also, err2 := io.ReadFull(b, y)
		if have != also {
			return 0, fmt.Errorf("RAM files of different sizes: %d and %d bytes of a piece: %w", have, also, syscall.EINVAL)
		}
		if have == 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || err2 != nil && !errors.Is(err2, io.ErrUnexpectedEOF) {
			return 0, errors.Join(err, err2)
		}
		if at := int(clock) - base; clock >= 0 && at >= 0 && at+wallClockSize <= have {
			sameWallClock(x[at:at+wallClockSize], y[at:at+wallClockSize])
		}
		for at := 0; at < have && !bytes.Equal(x[:have], y[:have]); at += pageSize {
			end := min(at+pageSize, have)
			if bytes.Equal(x[at:end], y[at:end]) {
				continue
			}
			if n++; n <= toldPages {
				from := at
				for x[from] == y[from] {
					from++
				}
				to := min(from+32, end)
				say("    page %d differs from byte %d on: %x, there %x", (base+at)/pageSize, from-at, x[from:to], y[from:to])
			}
		}
		base += have
	}
}
