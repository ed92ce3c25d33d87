package agentd

import (
	"context"
	"fmt"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// readDefault and readLimit are what one Read answers at most; a message of ttrpc
// holds less than 4 MiB.
const (
	readDefault = 256 << 10
	readLimit   = 1 << 20
)

// Read implements agentv1.AgentService.
func (s *Service) Read(ctx context.Context, r *agentv1.ReadRequest) (*agentv1.ReadResponse, error) {
	out, err := s.stream(r.Id, r.Stream)
	if err != nil {
		return nil, err
	}
	size := min(int(r.Max), readLimit)
	if size <= 0 {
		size = readDefault
	}
	data, at, eof := out.read(ctx, r.Offset, size, time.Duration(r.WaitMs)*time.Millisecond)
	return &agentv1.ReadResponse{Data: data, Offset: at, Eof: eof}, nil
}

// stream finds an output of a process.
func (s *Service) stream(id string, stream agentv1.Stream) (*output, error) {
	if c := s.connection(id); c != nil {
		return c.out, nil
	}
	p, err := s.find(id)
	if err != nil {
		return nil, err
	}
	switch stream {
	case agentv1.Stream_STREAM_STDOUT:
		return p.stdout, nil
	case agentv1.Stream_STREAM_STDERR:
		return p.stderr, nil
	}
	return nil, fmt.Errorf("read stream %v: %w", stream, errdefs.ErrInvalidArgument)
}

// Write implements agentv1.AgentService.
func (s *Service) Write(ctx context.Context, r *agentv1.WriteRequest) (*agentv1.WriteResponse, error) {
	in, err := s.inputOf(r.Id)
	if err != nil {
		return nil, err
	}
	accepted, closed, err := in.write(ctx, r.Offset, r.Data)
	if err != nil {
		return nil, err
	}
	return &agentv1.WriteResponse{Offset: accepted, Closed: closed}, nil
}

// CloseStdin implements agentv1.AgentService.
func (s *Service) CloseStdin(_ context.Context, r *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	in, err := s.inputOf(r.Id)
	if err != nil {
		return nil, err
	}
	in.closeAfter(r.Offset)
	return &agentv1.CloseStdinResponse{}, nil
}

// maxSizes bounds the sizes kept for terminals that may never come.
const maxSizes = 1024

// Resize implements agentv1.AgentService. The size of a process that has not started
// is kept for it.
func (s *Service) Resize(_ context.Context, r *agentv1.ResizeRequest) (*agentv1.ResizeResponse, error) {
	size := unix.Winsize{Row: uint16(r.Height), Col: uint16(r.Width)}
	s.mu.Lock()
	p := s.processes[r.Id]
	if p == nil && len(s.sizes) < maxSizes {
		s.sizes[r.Id] = size
	}
	s.mu.Unlock()
	if p == nil {
		return &agentv1.ResizeResponse{}, nil
	}
	return &agentv1.ResizeResponse{}, p.resize(size)
}
