package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/store"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
)

// outage is how an API server is away.
type outage struct {
	name   string
	answer func(*http.Request) (*http.Response, error)
	made   bool // the first request is carried out, and its answer is lost
	step   int  // it is away from each so many-th request on
}

var outages = []outage{
	{name: "refuses", answer: refuses, step: 3},
	{name: "refuses an answer", answer: refuses, made: true, step: 3},
	{name: "hangs", answer: hangs, step: 1},
	{name: "hangs with an answer", answer: hangs, made: true, step: 1},
	{name: "fails", answer: says(http.StatusInternalServerError), step: 5},
	{name: "has no etcd", answer: says(http.StatusGatewayTimeout), made: true, step: 5},
	{name: "has just started", answer: says(http.StatusForbidden), step: 7},
	{name: "is busy", answer: says(http.StatusTooManyRequests), step: 7},
}

func refuses(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

func hangs(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func says(code int) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) { return status(req, code, "by the test", nil), nil }
}

// away is the way to an API server that is away for a time from one of its requests on.
type away struct {
	*memoryAPI
	outage
	last  time.Duration
	first int // the request

	mu       sync.Mutex
	requests int
	while    int // it was away
	gone     time.Time
}

func (a *away) RoundTrip(req *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.requests++
	begins := a.requests == a.first
	if begins {
		a.gone = time.Now()
	}
	is := !a.gone.IsZero() && time.Since(a.gone) < a.last
	if is {
		a.while++
	}
	a.mu.Unlock()
	switch {
	case begins && a.made:
		if _, err := a.memoryAPI.RoundTrip(req); err != nil {
			return nil, err
		}
	case !is:
		return a.memoryAPI.RoundTrip(req)
	}
	return a.answer(req)
}

// pair are two nodes, and what of a VM is on each. It never runs on both.
type pair struct {
	records *controller.Service
	mu      sync.Mutex
	at      map[string]string
	broken  []string
}

func (p *pair) become(node, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[node] = state
	if p.at["a"] == "runs" && p.at["b"] == "runs" {
		p.broken = append(p.broken, "the VM runs twice")
	}
}

func (p *pair) is(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at[node]
}

func (*pair) Drives(string) bool { return true }

func (*pair) Nodes() []*nodev1.NodeInfo {
	return []*nodev1.NodeInfo{{Name: "a", Up: true, Address: "a"}, {Name: "b", Up: true, Address: "b"}}
}

func (p *pair) Node(name string) (*nodev1.NodeInfo, error) {
	for _, n := range p.Nodes() {
		if n.GetName() == name {
			return n, nil
		}
	}
	return nil, errdefs.ErrNotFound
}

func (p *pair) Peer(node string) (nodev1.PeerService, error) { return half{nil, p, node}, nil }

// half is one of the two. What a live move does not ask of it is not there.
type half struct {
	nodev1.PeerService
	*pair
	node string
}

func (half) Check(context.Context, *nodev1.PeerCheckRequest) (*nodev1.PeerCheckResponse, error) {
	return &nodev1.PeerCheckResponse{}, nil
}

func (half) Offer(context.Context, *nodev1.PeerRef) (*machinev1.OfferResponse, error) {
	return &machinev1.OfferResponse{Resume: []byte("{}")}, nil
}

func (h half) Prepare(context.Context, *nodev1.PeerPrepareRequest) (*nodev1.PeerPrepareResponse, error) {
	h.become(h.node, "armed")
	return &nodev1.PeerPrepareResponse{Address: "x:1", Channel: "c"}, nil
}

func (h half) Send(context.Context, *nodev1.PeerSendRequest) (*machinev1.SendResponse, error) {
	if is := h.is(h.node); is != "runs" && is != "paused" {
		return nil, errdefs.ErrFailedPrecondition
	}
	h.become(h.node, "paused")
	return &machinev1.SendResponse{Digest: record.StreamPrefix + "1", PauseMs: 1}, nil
}

func (half) Vote(context.Context, *nodev1.PeerRef) (*machinev1.VoteResponse, error) {
	return &machinev1.VoteResponse{Digest: record.StreamPrefix + "1"}, nil
}

func (h half) Abort(context.Context, *nodev1.PeerAbortRequest) (*machinev1.AbortResponse, error) {
	if h.is(h.node) == "paused" {
		h.become(h.node, "runs")
	}
	return &machinev1.AbortResponse{}, nil
}

// Run asks the records, as a shim does: without their word nothing runs.
func (h half) Run(ctx context.Context, r *nodev1.PeerRef) (*nodev1.PeerRunResponse, error) {
	rec, err := h.records.Get(ctx, &nodev1.GetRequest{Vm: r.GetVm()})
	if err != nil {
		return nil, err
	}
	if rec.GetOwner().GetNode() != h.node {
		return nil, errdefs.ErrFailedPrecondition
	}
	h.become(h.node, "runs")
	return &nodev1.PeerRunResponse{Running: true}, nil
}

func (h half) Release(context.Context, *nodev1.PeerReleaseRequest) (*nodev1.PeerState, error) {
	h.become(h.node, "left")
	return &nodev1.PeerState{}, nil
}

func (h half) Discard(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	h.become(h.node, "")
	return &nodev1.PeerState{}, nil
}

func (half) Query(context.Context, *nodev1.PeerRef) (*nodev1.PeerState, error) {
	return &nodev1.PeerState{}, nil
}

// The API server is away for an hour, from any request of a live move on, in any way. The VM never runs twice. When it
// is back the move ends: the VM runs at the node that the record names, and the record has no operation. Meanwhile the
// API server is not asked again and again.
func TestMoveWhileTheAPIServerIsAway(t *testing.T) {
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			moved, stayed := 0, 0
			for first := 1; ; first += o.step {
				reached, owner := false, ""
				synctest.Test(t, func(t *testing.T) { reached, owner = moveWhileAway(t, o, first) })
				if t.Failed() {
					t.Fatalf("from request %d on", first)
				}
				if owner == "b" {
					moved++
				} else {
					stayed++
				}
				if !reached {
					break
				}
			}
			t.Logf("%d moves ended at the destination, %d at the source", moved, stayed)
			if moved < 2 || (moved+stayed)*o.step < 15 {
				t.Errorf("a move asks the API server %d times", (moved+stayed)*o.step)
			}
		})
	}
}

const (
	hour = time.Hour
	// mostAsked an API server is that is away for an hour, by one move and by who waits for it: two a second.
	mostAsked = 7200
)

// moveWhileAway is one move. It answers whether the API server was away, and who has the VM then.
func moveWhileAway(t *testing.T, o outage, first int) (reached bool, owner string) {
	api := &away{memoryAPI: newMemoryAPI(), outage: o, last: hour}
	st, err := store.Open(&rest.Config{Host: "http://api", Transport: api, QPS: -1}, "system")
	if err != nil {
		t.Fatal(err)
	}
	records := controller.New(st)
	nodes := &pair{records: records, at: map[string]string{"a": "runs"}}
	vm, ctx := &nodev1.VM{Namespace: store.Kubernetes, Id: "default.vm"}, t.Context()
	if _, err = records.Ensure(ctx, &nodev1.EnsureRequest{Vm: vm}); err == nil {
		_, err = records.Own(ctx, &nodev1.OwnRequest{Vm: vm, Node: "a"})
	}
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Parts{Records: records, Peers: nodes, Snapshots: snapshots{config: &config.Config{}},
		Events: engine.Log{Logger: slog.New(slog.DiscardHandler)}}, engine.Options{Node: "operator",
		Repository: func(rec *nodev1.Record) string { return "r/" + rec.GetUid() }})
	defer e.Close()
	api.mu.Lock()
	api.requests, api.first = 0, first
	api.mu.Unlock()
	order := &nodev1.MigrateRequest{Vm: vm, To: "b", Operation: "11111111-1111-4111-8111-111111111111"}
	const pause, over = 5 * time.Second, 2 * hour
	for begun := time.Now(); ; time.Sleep(pause) {
		if _, err := e.Migrate(ctx, order); err == nil || time.Since(begun) > over {
			break
		}
	}
	var rec *nodev1.Record
	var closed *nodev1.OperationResponse
	for begun := time.Now(); ; time.Sleep(pause) {
		_ = e.Resume(ctx)
		if rec, err = records.Get(ctx, &nodev1.GetRequest{Vm: vm}); err == nil && rec.GetOperation() == nil {
			closed, err = records.Operation(ctx, &nodev1.OperationRequest{Id: order.GetOperation()})
		}
		if err == nil && rec.GetOperation() == nil || time.Since(begun) > over {
			break
		}
	}
	owner = rec.GetOwner().GetNode()
	want := nodev1.Phase_PHASE_SUCCEEDED
	if owner == "a" {
		want = nodev1.Phase_PHASE_FAILED
	}
	if err != nil || rec.GetOperation() != nil || nodes.is(owner) != "runs" || len(nodes.broken) > 0 ||
		closed.GetOperation().GetPhase() != want {
		t.Errorf("record %v, operation %v, %v, VM %v, %v", rec, closed, err, nodes.at, nodes.broken)
	}
	if api.while > mostAsked {
		t.Errorf("it was asked %d times while it was away", api.while)
	}
	return !api.gone.IsZero(), owner
}

// status is an answer that is no object.
func status(req *http.Request, code int, reason string, details map[string]any) *http.Response {
	return answerOf(req, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
		"reason": reason, "message": strings.ToLower(fmt.Sprint(http.StatusText(code))), "details": details})
}
