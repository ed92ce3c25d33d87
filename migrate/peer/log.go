package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/logtimes"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of an answer about a log.
const (
	logBytes = 512 << 10 // one part may go beyond
	logParts = 8000
	tailMost = 100000 // lines: of more, all are answered
)

// Log implements nodev1.PeerService.
func (s *Server) Log(ctx context.Context, req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	call := fmt.Sprintf("read the log of VM %s on node %s", key(req.GetVm()), s.Node)
	if req.GetUid() == "" {
		return nil, fmt.Errorf("%s: uid: it is empty: %w", call, errdefs.ErrInvalidArgument)
	}
	out, err := s.Output(req.GetVm().GetNamespace(), req.GetVm().GetId())
	if err != nil {
		return nil, fmt.Errorf("%s: stdio_uri: %w", call, err)
	}
	if out.Scheme != "file" {
		return nil, fmt.Errorf("%s: the output of VMs goes to no file there (stdio_uri): %w", call, errdefs.ErrNotFound)
	}
	l := &logFiles{path: out.Path, uid: req.GetUid()}
	if l.files, err = logtimes.Files(l.path, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	defer func() { _ = logtimes.Close(l.files) }()
	if len(l.files) == 0 {
		return nil, fmt.Errorf("%s: there is none: %w", call, errdefs.ErrNotFound)
	}
	from := req.GetFrom()
	if from == nil && req.Tail != nil && req.GetTail() >= 0 && req.GetTail() <= tailMost {
		if from, err = l.tail(ctx, int(req.GetTail())); err != nil {
			return nil, fmt.Errorf("%s: %w", call, err)
		}
	}
	resp, err := l.answer(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	return resp, nil
}

// logFiles are the files of a log, the oldest first, as they are given to other nodes: what is of one VM.
type logFiles struct {
	path, uid string
	files     []*os.File
}

// each calls do for the parts from a place on, until it answers false. The data are valid until it returns.
func (l *logFiles) each(ctx context.Context, from *nodev1.LogPlace, do func(file uint64, p logtimes.Part) bool) error {
	first, inodes := 0, make([]uint64, len(l.files))
	for i, f := range l.files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			inodes[i] = st.Ino
		}
		if from != nil && inodes[i] == from.GetFile() { // else it was rotated away, and all older ones too
			first = i
		}
	}
	for i := first; i < len(l.files); i++ {
		at := int64(0)
		if from != nil && inodes[i] == from.GetFile() {
			at = from.GetOffset()
		}
		if _, err := l.files[i].Seek(at, io.SeekStart); err != nil {
			return fmt.Errorf("from.offset: %w: %w", errdefs.ErrInvalidArgument, err)
		}
		r, err := logtimes.NewReader(l.files[i], l.path)
		for err == nil && ctx.Err() == nil {
			var p logtimes.Part
			if p, err = r.Next(); err == nil && !do(inodes[i], p) {
				return nil
			}
		}
		if err != nil && !errors.Is(err, io.EOF) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return nil
}

// tail is where the last n lines of the VM begin; nil: it has fewer.
func (l *logFiles) tail(ctx context.Context, n int) (*nodev1.LogPlace, error) {
	var last []*nodev1.LogPlace // places where a line begins, as a ring
	within, lines, end := false, 0, &nodev1.LogPlace{}
	err := l.each(ctx, nil, func(file uint64, p logtimes.Part) bool {
		end = &nodev1.LogPlace{File: file, Offset: p.At + int64(len(p.Data))}
		if p.UID != l.uid {
			return true
		}
		for i, b := range p.Data {
			if !within && n > 0 {
				place := &nodev1.LogPlace{File: file, Offset: p.At + int64(i)}
				if len(last) < n {
					last = append(last, place)
				} else {
					last[lines%n] = place
				}
				lines++
			}
			within = b != '\n'
		}
		return true
	})
	switch {
	case err != nil || n > 0 && lines <= n:
		return nil, err
	case n == 0:
		return end, nil
	}
	return last[lines%n], nil
}

// answer has as much as an answer may have.
func (l *logFiles) answer(ctx context.Context, from *nodev1.LogPlace) (*nodev1.LogResponse, error) {
	resp, size := &nodev1.LogResponse{End: true}, 0
	err := l.each(ctx, from, func(file uint64, p logtimes.Part) bool {
		if p.UID != l.uid {
			resp.Other = resp.GetOther() || p.UID == ""
			return true
		}
		nano := p.Time.UnixNano()
		if n := len(resp.Parts); n > 0 && resp.Parts[n-1].GetUnixNano() == nano {
			resp.Parts[n-1].Data = append(resp.Parts[n-1].Data, p.Data...)
		} else {
			resp.Parts = append(resp.Parts, &nodev1.LogPart{UnixNano: nano, Data: slices.Clone(p.Data)})
		}
		if size += len(p.Data); size < logBytes && len(resp.Parts) < logParts {
			return true
		}
		resp.End, resp.Next = false, &nodev1.LogPlace{File: file, Offset: p.At + int64(len(p.Data))}
		return false
	})
	return resp, err
}
