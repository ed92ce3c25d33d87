package client

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/logtimes"
)

// part is one of an answer: a second, and what was written then.
func part(at int64, text string) *nodev1.LogPart {
	return &nodev1.LogPart{UnixNano: at * int64(time.Second), Data: []byte(text)}
}

// elsewhere answers what other nodes have, by their names. Like a godwitd it answers the last lines alone if it is
// asked.
type elsewhere map[string][]*nodev1.LogPart

func (e elsewhere) log(req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
	parts, found := e[req.GetNode()]
	if !found {
		return nil, fmt.Errorf("node %s: %w", req.GetNode(), errdefs.ErrUnavailable)
	}
	resp := &nodev1.LogResponse{Parts: parts, End: true}
	if req.Tail != nil {
		last := &lastParts{n: int(req.GetTail())}
		for _, p := range parts {
			_ = last.add(logtimes.Part{Mark: logtimes.Mark{Time: time.Unix(0, p.GetUnixNano())}, Data: p.GetData()})
		}
		resp.Parts = nil
		_ = last.flush(func(p logtimes.Part) error {
			resp.Parts = append(resp.Parts, &nodev1.LogPart{UnixNano: p.Time.UnixNano(), Data: p.Data})
			return nil
		})
	}
	return resp, nil
}

// joinedLog shows the log of web, which is on node b, as show of a timedLog does.
func (l *timedLog) joined(d *daemon, c *Client, o LogOptions) (text, noted string, err error) {
	l.Helper()
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	d.vms = []*nodev1.VMInfo{{Vm: vm, Owner: &nodev1.Owner{Node: "b"}}}
	o.Note = func(text string) { noted += text + "\n" }
	before := c.past(l.Context(), vm, o.Note)
	var out strings.Builder
	r := &logReader{path: l.path, out: &out, times: newTimedLines("web", o)}
	defer r.close()
	err = c.joined(l.Context(), vm, r, before.nodes, before.once, o)
	if err == nil { // it goes on
		l.write(9, "nine\n")
		err = r.more()
	}
	text = out.String()
	for i := range 10 {
		text = strings.ReplaceAll(text, second(int64(i)).UTC().Format(stampClock), fmt.Sprint(i))
	}
	return strings.ReplaceAll(text, noStamp, "-"), noted, err
}

// A log goes on in order over nodes: as the VM went, whatever their clocks say, and by the times where it has come back
// to a node. Lines go over a move. Times, and the last lines, are those of all nodes.
func TestJoinedLog(t *testing.T) {
	a := []*nodev1.LogPart{part(1, "one\n"), part(4, "two\nthr")}
	back := []*nodev1.LogPart{part(1, "one\n"), part(5, "five\n")}
	for i, o := range []struct {
		ran  string
		has  elsewhere
		o    LogOptions
		want string
	}{
		{"a b", elsewhere{"a": a}, LogOptions{Tail: -1}, "one\ntwo\nthree\nfour\nnine\n"},
		{"c a b", elsewhere{"a": a, "c": {part(8, "zero\n")}}, LogOptions{Tail: -1},
			"zero\none\ntwo\nthree\nfour\nnine\n"},
		{"a b", elsewhere{"a": a}, LogOptions{Tail: -1, Timestamps: true}, "1 one\n4 two\n4 three\n3 four\n9 nine\n"},
		{"b a b", elsewhere{"a": back}, LogOptions{Tail: -1}, "one\nee\nfour\nfive\nnine\n"},
		{"a b", elsewhere{"a": a}, LogOptions{Tail: 2}, "three\nfour\nnine\n"},
		{"a b", elsewhere{"a": a}, LogOptions{Tail: 3}, "two\nthree\nfour\nnine\n"},
		{"a b", elsewhere{"a": a}, LogOptions{Tail: 0}, "nine\n"},
		{"a b", elsewhere{}, LogOptions{Tail: 1}, "four\nnine\n"}, // this node has enough
		{"a b", elsewhere{"a": a}, LogOptions{Tail: -1, Since: second(4)}, "two\nthree\nnine\n"},
		{"a b", elsewhere{"a": a}, LogOptions{Tail: -1, Until: second(3)}, "one\nfour\n"},
	} {
		d, _, c := newNode(t)
		d.ranOn, d.log = strings.Fields(o.ran), o.has.log
		l := newTimedLog(t)
		l.write(2, "ee\n")
		l.next()
		l.write(3, "four\n")
		if text, noted, err := l.joined(d, c, o.o); err != nil || text != o.want || noted != "" {
			t.Errorf("%d: %q, noted %q, %v; want %q", i, text, noted, err, o.want)
		}
	}
}

// What another node does not give, or cannot have, is named: the log goes on without it.
func TestJoinedLogOfBadNodes(t *testing.T) {
	long := strings.Repeat(strings.Repeat("x", 1023)+"\n", 512)
	calls := 0
	for name, o := range map[string]struct {
		log         func(*nodev1.LogRequest) (*nodev1.LogResponse, error)
		want, noted string
		most        int // bytes that are shown
	}{
		"gone": {elsewhere{}.log, "ee\nnine\n", "what web wrote on node a is missing: ", 0},
		"of an earlier build": {func(*nodev1.LogRequest) (*nodev1.LogResponse, error) {
			return nil, errdefs.ErrNotImplemented
		}, "ee\nnine\n", "on a: godwit logs web", 0},
		"gone midway": {func(req *nodev1.LogRequest) (*nodev1.LogResponse, error) {
			if req.GetFrom() != nil {
				return nil, errdefs.ErrUnavailable
			}
			return &nodev1.LogResponse{Parts: []*nodev1.LogPart{part(1, long)}, Next: &nodev1.LogPlace{Offset: 1}}, nil
		}, long + "ee\nnine\n", "what web wrote on node a is not whole: ", 0},
		"without lines, without an end": {func(*nodev1.LogRequest) (*nodev1.LogResponse, error) {
			calls++
			return &nodev1.LogResponse{Next: &nodev1.LogPlace{Offset: 1}}, nil
		}, "ee\nnine\n", "node a is missing: the node answers without an end", 0},
		"without an end": {func(*nodev1.LogRequest) (*nodev1.LogResponse, error) {
			return &nodev1.LogResponse{Parts: []*nodev1.LogPart{part(1, long)}, Next: &nodev1.LogPlace{Offset: 1}}, nil
		}, "", "node a is not whole: the node answers more than 256 MiB", nodeMost + 100},
		"of the future": {elsewhere{"a": {part(1, "one\n"), part(1<<33, "late\n")}}.log, "one\nlate\nee\nnine\n",
			"node a says times of the future", 0},
		"of other VMs too": {func(*nodev1.LogRequest) (*nodev1.LogResponse, error) {
			return &nodev1.LogResponse{End: true, Other: true}, nil
		}, "ee\nnine\n", "node a has lines that web, or another VM", 0},
	} {
		d, _, c := newNode(t)
		d.ranOn, d.log = []string{"a", "b"}, o.log
		l := newTimedLog(t)
		l.write(2, "ee\n")
		text, noted, err := l.joined(d, c, LogOptions{Tail: -1})
		if err != nil || o.most == 0 && text != o.want || o.most > 0 && len(text) > o.most || !strings.HasSuffix(text,
			"ee\nnine\n") || !strings.Contains(noted, o.noted) || strings.Count(noted, "\n") != 1 {
			t.Errorf("%s: %.100q, noted %q, %v; want %.100q", name, text, noted, err, o.want)
		}
	}
	if calls != 1 {
		t.Errorf("a node that answers nothing was asked %d times", calls)
	}
}

// Where no node has anything there is no log. A VM without a record has run nowhere else; of one whose godwitd does
// not answer that is not known, and said.
func TestJoinedLogWithoutLines(t *testing.T) {
	d, _, c := newNode(t)
	d.ranOn, d.log = []string{"a", "b"}, elsewhere{"a": nil}.log
	l := newTimedLog(t)
	l.path += "none"
	if _, _, err := l.joined(d, c, LogOptions{Tail: -1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no lines: %v", err)
	}
	noted := ""
	note := func(text string) { noted += text }
	other := &nodev1.VM{Namespace: "default", Id: "other"}
	if p := c.past(t.Context(), other, note); len(p.nodes) != 0 || noted != "" {
		t.Errorf("no record: %q, %s", p.nodes, noted)
	}
	d.fails = errdefs.ErrUnavailable
	if p := c.past(t.Context(), other, note); len(p.nodes) != 0 || !strings.Contains(noted,
		"may be missing") {
		t.Errorf("no answer: %q, %s", p.nodes, noted)
	}
}
