package agentd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// minEntropy is what the host sends at least: the kernel's pool holds 32 bytes.
const minEntropy = 32

// Restored implements agentv1.AgentService.
func (s *Service) Restored(ctx context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	if len(r.Entropy) < minEntropy {
		return nil, fmt.Errorf("restored: entropy of %d bytes, not %d: %w", len(r.Entropy), minEntropy,
			errdefs.ErrInvalidArgument)
	}
	if err := addEntropy(r.Entropy); err != nil {
		return nil, err
	}
	if err := s.noteWake(r.UnixNano); err != nil {
		return nil, err
	}
	s.network.wakes.Add(1)
	s.dropConnections()
	resp := new(agentv1.RestoredResponse)
	if r.SetNics {
		if err := s.configure(ctx, r.Nics); err != nil {
			resp.NicProblem = s.problem(err)
		}
	}
	resp.FileProblems = s.renew(ctx, s.main(), r.Files)
	var err error
	if resp.BootId, resp.UptimeMs, err = boot(); err != nil {
		return nil, err
	}
	if r.Generation != "" {
		s.opts.Log("restored, generation %q, %s", r.Generation, time.Now().UTC().Format(time.RFC3339))
	}
	resp.Processes = s.list("", listMax)
	return resp, nil
}

// maxProblem is what is answered of the text of a problem.
const maxProblem = 1 << 10

// problem says on the console what a container is in the way of, and answers it. The host decides: a woken guest runs
// also where it does not know where it is.
func (s *Service) problem(err error) string {
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxProblem)], "")
	s.opts.Log("restored: %s", text)
	return text
}

// filesBound is how long the host's answer waits for files: a call may hang in the container, and the host waits for
// what else the guest has to say.
const filesBound = 5 * time.Second

// renew copies files again unless the container has ended: they are not read then. Each that it cannot copy is a
// problem, and no other file suffers from it. What hangs is left to itself.
func (s *Service) renew(ctx context.Context, c *container, files []*agentv1.File) (problems []string) {
	if len(files) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, filesBound)
	done := make(chan []string, 1)
	go func() {
		defer cancel()
		done <- s.renewAll(ctx, c, files)
	}()
	select {
	case problems = <-done:
		return problems
	case <-ctx.Done():
	}
	select {
	case problems = <-done: // it has ended with ctx
	case <-time.After(filesBound / 10):
		problems = []string{s.problem(fmt.Errorf("copy files: a call hangs in the container: %w", ctx.Err()))}
	}
	return problems
}

func (s *Service) renewAll(ctx context.Context, c *container, files []*agentv1.File) (problems []string) {
	if err := c.turn.Take(ctx); err != nil {
		return []string{s.problem(fmt.Errorf("copy files: %w", err))}
	}
	defer c.turn.Give()
	if c.init != nil && c.init.exited() {
		return nil
	}
	for _, f := range files {
		if err := s.copyFiles(ctx, c, []*agentv1.File{f}); err != nil && len(problems) < maxProblems {
			problems = append(problems, s.problem(err))
		}
	}
	return problems
}

// maxProblems is how many problems are answered.
const maxProblems = 16

// addEntropy credits data to the kernel's generator and makes it use it at once: a
// restored VM must not repeat the numbers of its snapshot.
func addEntropy(data []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("add entropy: %w", err)
	}
	defer f.Close()
	const most = 512
	data = data[:min(len(data), most)]
	pool := struct { // struct rand_pool_info
		bits, size int32
		buf        [most]byte
	}{bits: int32(8 * len(data)), size: int32(len(data))}
	copy(pool.buf[:], data)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY,
		uintptr(unsafe.Pointer(&pool))); errno != 0 {
		return fmt.Errorf("add entropy: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("reseed: %w", errno)
	}
	return nil
}

// rndReseedCRNG is RNDRESEEDCRNG of linux/random.h.
const rndReseedCRNG = 0x5207
