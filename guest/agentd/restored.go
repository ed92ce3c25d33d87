package agentd

import (
	"context"
	"fmt"
	"os"
	"time"
	"unsafe"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// minEntropy is what the host sends at least: the kernel's pool holds 32 bytes.
const minEntropy = 32

// Restored implements agentv1.AgentService.
func (s *Service) Restored(_ context.Context, r *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
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
	s.dropConnections()
	if r.SetNics {
		if err := s.configure(r.Nics); err != nil {
			return nil, err
		}
	}
	if err := s.main().renew(r.Files); err != nil {
		return nil, err
	}
	id, uptime, err := boot()
	if err != nil {
		return nil, err
	}
	if r.Generation != "" {
		s.opts.Log("restored, generation %q, %s", r.Generation, time.Now().UTC().Format(time.RFC3339))
	}
	return &agentv1.RestoredResponse{BootId: id, UptimeMs: uptime, Processes: s.list("")}, nil
}

// renew copies files again unless the container has ended: they are not read then.
func (c *container) renew(files []*agentv1.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.init != nil && c.init.exited() {
		return nil
	}
	return c.copyFiles(files)
}

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
