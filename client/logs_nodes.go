package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/moves"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/logtimes"
)

// Bounds of what another node says of a log. It may be hostile.
const (
	nodeMost  = 256 << 20       // bytes
	nodeLeast = 4 << 10         // bytes of an answer that is not the last one
	nodeSlow  = 2 * time.Minute // of waiting for its answers
	nodeSkew  = time.Minute     // by which its clock may be ahead
)

// past of a VM is what its record says of it.
type past struct {
	uid   string   // empty: not known
	nodes []string // the others where the VM has run
	// once: they are all, in the order in which the VM was there, and it has come back to none.
	once bool
}

// past asks for the record of a VM.
func (c *Client) past(ctx context.Context, vm *nodev1.VM, note func(string)) (p past) {
	rec, err := c.recorded(ctx, vm)
	here := c.here(ctx)
	if errdefs.IsNotFound(err) { // a VM that has no record has not moved
		return past{}
	}
	if p.uid = rec.GetUid(); err != nil || here == "" {
		note(fmt.Sprintf("what %s wrote on other nodes may be missing: godwitd does not say where it has run", vm.GetId()))
		return p
	}
	p.nodes, p.once = record.RanOn(rec)
	if n := len(p.nodes); n > 0 && p.nodes[n-1] != here {
		p.once = false
	}
	p.nodes = slices.DeleteFunc(p.nodes, func(node string) bool { return node == here })
	return p
}

// nodeParts is what another node has of a log.
type nodeParts struct {
	ask  func(context.Context, *nodev1.LogRequest) (*nodev1.LogResponse, error)
	ctx  context.Context //nolint:containedctx // of the verb that reads all sources
	req  *nodev1.LogRequest
	note func(string)

	parts []*nodev1.LogPart
	end   bool
	bytes int
	took  time.Duration // for its answers
	limit time.Time     // of its times
	last  time.Time
	odd   bool // it has said times that cannot be
	other bool // it has lines of an earlier build
}

func newNodeParts(ctx context.Context, m *moves.Client, vm *nodev1.VM, node string, o LogOptions) *nodeParts {
	n := &nodeParts{ask: m.Log, ctx: ctx, note: o.Note, req: &nodev1.LogRequest{Vm: vm, Node: node}}
	if o.Tail >= 0 {
		tail := int64(o.Tail)
		n.req.Tail = &tail
	}
	return n
}

// next implements source. A node that does not answer, or says what cannot be, ends early, and that is noted.
func (n *nodeParts) next() (logtimes.Part, error) {
	for len(n.parts) == 0 {
		if n.end {
			return logtimes.Part{}, io.EOF
		}
		if err := n.more(); err != nil {
			if n.ctx.Err() != nil {
				return logtimes.Part{}, n.ctx.Err()
			}
			what := "is missing"
			if n.end = true; n.bytes > 0 {
				what = "is not whole"
			}
			n.note(fmt.Sprintf("what %s wrote on node %s %s: %v", n.req.GetVm().GetId(), n.req.GetNode(), what, err))
		}
	}
	p := n.parts[0]
	n.parts = n.parts[1:]
	return logtimes.Part{Mark: logtimes.Mark{Time: n.time(p.GetUnixNano())}, Known: true, Data: p.GetData()}, nil
}

// more asks for the next part.
func (n *nodeParts) more() error {
	begun := time.Now()
	resp, err := n.ask(n.ctx, n.req)
	n.took += time.Since(begun)
	if errdefs.IsNotImplemented(err) {
		err = fmt.Errorf("that node, or the controller, has an earlier build, which keeps it to itself: on %s: "+
			"godwit logs %s", n.req.GetNode(), n.req.GetVm().GetId())
	}
	if err != nil {
		return err
	}
	size := 0
	for _, p := range resp.GetParts() {
		size += len(p.GetData())
	}
	n.bytes += size
	switch {
	case n.bytes > nodeMost:
		return fmt.Errorf("the node answers more than %d MiB", nodeMost>>20)
	case !resp.GetEnd() && (resp.GetNext() == nil || size < nodeLeast):
		return errors.New("the node answers without an end")
	case !resp.GetEnd() && n.took > nodeSlow:
		return fmt.Errorf("the node takes more than %v to answer", nodeSlow)
	}
	if resp.GetOther() && !n.other {
		n.other = true
		node, vm := n.req.GetNode(), n.req.GetVm().GetId()
		n.note(fmt.Sprintf("node %s has lines that %s, or another VM of that name, wrote under an earlier build. "+
			"To see them, on %s: godwit logs %s", node, vm, node, vm))
	}
	n.parts, n.end, n.req.From, n.limit = resp.GetParts(), resp.GetEnd(), resp.GetNext(), time.Now().Add(nodeSkew)
	return nil
}

// time is one that can be: no later than now, and not before that of the part before.
func (n *nodeParts) time(nano int64) time.Time {
	at := time.Unix(0, nano)
	if at.After(n.limit) {
		if at = n.limit; !n.odd {
			n.odd = true
			n.note(fmt.Sprintf("node %s says times of the future for what %s wrote there", n.req.GetNode(),
				n.req.GetVm().GetId()))
		}
	}
	if at.Before(n.last) {
		at = n.last
	}
	n.last = at
	return at
}
