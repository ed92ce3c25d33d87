package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/logtimes"
)

// source answers the parts of a log that one node has, the oldest first; io.EOF: there is no more. The data are the
// source's until the next call.
type source interface {
	next() (logtimes.Part, error)
}

// joined writes what the nodes have of a log: those where the VM ran before, and this one. once: one after the other,
// as the VM went; else by their times. ErrNotExist: no node has anything.
func (c *Client) joined(ctx context.Context, vm *nodev1.VM, l *logReader, others []string, once bool,
	o LogOptions) error {
	files, whole, err := l.open(o.Tail)
	untimed := errors.Is(err, errNoTimes) // those of the others may have times
	if untimed {
		times := l.times
		l.times = nil
		files, whole, err = l.open(o.Tail)
		l.times = times
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && once && !whole && !untimed { // they are the last lines of all
		return l.take(files)
	}
	m, merr := c.Moves()
	if merr != nil {
		return errors.Join(merr, logtimes.Close(files))
	}
	j := &joint{once: once, write: l.writePart}
	for _, node := range others {
		j.sources = append(j.sources, newNodeParts(ctx, m, vm, node, o))
	}
	j.sources = append(j.sources, &ownParts{path: l.path, files: files})
	if n := len(files); n > 0 {
		l.file = files[n-1]
		defer func() { _ = logtimes.Close(files[:n-1]) }()
	}
	if err := j.fill(l.times); err != nil {
		return err
	}
	var tail *lastParts
	if o.Tail >= 0 {
		tail = &lastParts{n: o.Tail}
		j.write = tail.add
	}
	if jerr := j.copy(); jerr != nil {
		return jerr
	}
	if tail != nil {
		if jerr := tail.flush(l.writePart); jerr != nil {
			return jerr
		}
	}
	if j.wrote {
		return nil
	}
	return err
}

// writePart writes a part, or what is wanted of it.
func (l *logReader) writePart(p logtimes.Part) error {
	if l.times != nil {
		return l.times.write(l.out, p)
	}
	_, err := l.out.Write(p.Data)
	return err
}

// ownParts are the parts of the files of this node.
type ownParts struct {
	path  string
	files []*os.File
	r     *logtimes.Reader // of the first file; nil: it is not begun
}

func (o *ownParts) next() (logtimes.Part, error) {
	for len(o.files) > 0 {
		if o.r == nil {
			var err error
			if o.r, err = logtimes.NewReader(o.files[0], o.path); err != nil {
				return logtimes.Part{}, err
			}
		}
		p, err := o.r.Next()
		if !errors.Is(err, io.EOF) {
			return p, err
		}
		o.files, o.r = o.files[1:], nil
	}
	return logtimes.Part{}, io.EOF
}

// joint writes the parts of several sources as one log.
type joint struct {
	sources []source
	heads   []*logtimes.Part // of the sources; nil: it has no more
	once    bool
	write   func(logtimes.Part) error
	wrote   bool
}

// fill reads the first part of each source. times, if not nil, hears of the oldest time.
func (j *joint) fill(times *timedLines) error {
	for _, s := range j.sources {
		j.heads = append(j.heads, nil)
		if err := j.advance(len(j.heads)-1, s); err != nil {
			return err
		}
	}
	if times == nil {
		return nil
	}
	for _, h := range j.heads {
		if h != nil && h.Known && (times.first.IsZero() || h.Time.Before(times.first)) {
			times.first = h.Time
		}
	}
	if times.first.IsZero() && (!times.since.IsZero() || !times.until.IsZero()) {
		return errNoTimes
	}
	return nil
}

func (j *joint) advance(i int, s source) error {
	p, err := s.next()
	if errors.Is(err, io.EOF) {
		j.heads[i] = nil
		return nil
	}
	j.heads[i] = &p
	return err
}

func (j *joint) copy() error {
	for {
		i := j.first()
		if i < 0 {
			return nil
		}
		if err := j.write(*j.heads[i]); err != nil {
			return err
		}
		j.wrote = true
		if err := j.advance(i, j.sources[i]); err != nil {
			return err
		}
	}
}

// first is the source whose part comes next; below 0: there is none. A part without a time is older than all that have
// one.
func (j *joint) first() int {
	next := -1
	for i, h := range j.heads {
		switch {
		case h == nil:
		case next < 0 || !j.once && h.Time.Before(j.heads[next].Time):
			next = i
		}
	}
	return next
}

// lastParts keep the last n lines.
type lastParts struct {
	n     int
	parts []logtimes.Part
	ends  int // of lines in parts
}

func (l *lastParts) add(p logtimes.Part) error {
	p.Data = slices.Clone(p.Data)
	l.parts = append(l.parts, p)
	l.ends += bytes.Count(p.Data, []byte{'\n'})
	for len(l.parts) > 1 {
		ends := bytes.Count(l.parts[0].Data, []byte{'\n'})
		if l.ends-ends <= l.n {
			break
		}
		l.parts, l.ends = l.parts[1:], l.ends-ends
	}
	return nil
}

func (l *lastParts) flush(write func(logtimes.Part) error) error {
	lines := l.ends
	if n := len(l.parts); n > 0 && !bytes.HasSuffix(l.parts[n-1].Data, []byte{'\n'}) {
		lines++ // the last one has no end yet
	}
	for _, p := range l.parts {
		for ; lines > l.n && len(p.Data) > 0; lines-- {
			i := bytes.IndexByte(p.Data, '\n')
			if i < 0 {
				p.Data = nil
				break
			}
			p.Data = p.Data[i+1:]
		}
		if lines > l.n || len(p.Data) == 0 {
			continue
		}
		if err := write(p); err != nil {
			return err
		}
	}
	return nil
}
