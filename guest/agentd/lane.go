package agentd

import (
	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/session"
)

// lane is how far the host has been sent a stream that it takes in bulk. The lock of the
// output guards it.
type lane struct {
	next    uint64 // offset to send
	limit   uint64 // the host wants nothing from here on
	skip    bool   // the host asked for what is gone
	ended   bool   // the host was told of the end
	dropped bool   // the host was told that there is no stream any more
}

// Open finds the stream that a lane of the host names, in the words of a Read.
func (s *Service) Open(name []byte) session.Source {
	var r agentv1.ReadRequest
	if err := r.Unmarshal(name); err != nil {
		return nil
	}
	out, err := s.stream(r.Id, r.Stream)
	if err != nil {
		return nil
	}
	return out
}

// Want implements session.Source.
func (o *output) Want(w session.Want) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lane.limit = w.Limit
	o.confirm(w.Have)
	if w.Again {
		o.lane = lane{next: max(w.From, o.base), limit: w.Limit, skip: w.From < o.base}
	}
}

// Next implements session.Source.
func (o *output) Next(p []byte) (session.Piece, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := &o.lane
	if l.limit == 0 {
		return session.Piece{}, false
	}
	if o.dropped {
		was := l.dropped
		l.dropped = true
		return session.Piece{Gone: true}, !was
	}
	l.next = max(l.next, o.base)
	if l.limit > l.next && l.next-o.base <= uint64(o.data.Len()) {
		p = p[:min(uint64(len(p)), l.limit-l.next)]
	} else {
		p = nil
	}
	piece := session.Piece{At: l.next, Skip: l.skip}
	if len(p) > 0 {
		piece.Len = o.data.Copy(p, int(l.next-o.base))
	}
	l.next += uint64(piece.Len)
	piece.End = o.eof && l.next >= o.base+uint64(o.data.Len()) && !l.ended
	l.ended = l.ended || piece.End
	l.skip = false
	return piece, piece.Len > 0 || piece.End || piece.Skip
}
