package dashboard

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// source is a daemon whose lists are set by a test; each may fail.
type source struct {
	mu        sync.Mutex
	vms       []*nodev1.VMInfo
	nodes     []*nodev1.NodeInfo
	moves     []*nodev1.StatusResponse
	snapshots []*nodev1.SnapshotInfo
	warning   string
	away      map[string]bool
	asked     int
}

var errAway = errors.New("store <b>away</b>")

func (s *source) fails(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away[what] {
		return errAway
	}
	return nil
}

func (s *source) set(what string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = map[string]bool{what: away}
}

func (s *source) VMs(context.Context, *nodev1.VMsRequest) (*nodev1.VMsResponse, error) {
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	return &nodev1.VMsResponse{Vms: s.vms, Warning: s.warning}, s.fails("vms")
}

func (s *source) Nodes(context.Context, *nodev1.NodesRequest) (*nodev1.NodesResponse, error) {
	return &nodev1.NodesResponse{Nodes: s.nodes}, s.fails("nodes")
}

func (s *source) Moves(context.Context, *nodev1.MovesRequest) (*nodev1.MovesResponse, error) {
	return &nodev1.MovesResponse{Moves: s.moves}, s.fails("moves")
}

func (s *source) Snapshots(context.Context, *nodev1.SnapshotsRequest) (*nodev1.SnapshotsResponse, error) {
	return &nodev1.SnapshotsResponse{Snapshots: s.snapshots}, s.fails("snapshots")
}

func (s *source) Status(_ context.Context, req *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: req.GetOperation(),
		Kind: nodev1.Kind_KIND_HIBERNATE, Vm: vm("sleepy")}, Step: "push", Done: 1 << 20, Total: 4 << 20}, s.fails("status")
}

func vm(id string) *nodev1.VM { return &nodev1.VM{Namespace: "default", Id: id} }

// fixtures are a move under way, a VM that falls asleep, one that sleeps, one that is lost, one that runs.
func fixtures(now time.Time) *source {
	digest := "sha256:" + strings.Repeat("0f", 32)
	at := now.Add(-90 * time.Second).UnixNano()
	return &source{
		vms: []*nodev1.VMInfo{
			{Vm: vm("web"), Status: "running", Owner: &nodev1.Owner{Node: "a"}, Memory: 1 << 30, Resident: 300 << 20,
				Vcpus: 2, Vmm: "cloud-hypervisor", Addresses: []string{"10.88.0.7/16"}},
			{Vm: vm("api"), Status: "migrating", Owner: &nodev1.Owner{Node: "a"}, Memory: 2 << 30, Resident: 1 << 30, Vcpus: 4,
				Operation: &nodev1.Operation{Id: "m1", Kind: nodev1.Kind_KIND_MIGRATE}},
			{Vm: vm("sleepy"), Status: "hibernating", Owner: &nodev1.Owner{Node: "a"},
				Operation: &nodev1.Operation{Id: "h1", Kind: nodev1.Kind_KIND_HIBERNATE}},
			{Vm: vm("night"), Status: "hibernated", Owner: &nodev1.Owner{Digest: digest}},
			{Vm: vm("gone"), Status: "lost", Note: "node c is lost: godwit recover gone --to a --fenced"},
		},
		nodes: []*nodev1.NodeInfo{
			{Name: "a", Up: true, Controller: true, Vms: 3, RamBytes: 8 << 30, FreeBytes: 5 << 30, Version: "v0.1.0"},
			{Name: "b", Up: true, Vms: 1, RamBytes: 8 << 30, FreeBytes: 7 << 30, Version: "v0.1.0"},
			{Name: "c", SeenUnixNano: now.Add(-time.Hour).UnixNano(), Vms: 1, Version: "v0.1.0"},
		},
		moves: []*nodev1.StatusResponse{{
			Operation: &nodev1.Operation{Id: "m1", Kind: nodev1.Kind_KIND_MIGRATE, Vm: vm("api"), Source: "a",
				Destination: "b", Phase: nodev1.Phase_PHASE_TRANSFERRING, OpenedUnixNano: at},
			Transfer: &nodev1.Transfer{Pass: 2, SentBytes: 900 << 20, LeftBytes: 300 << 20, DirtyRate: 4 << 20, DowntimeMs: 60},
			Figures: &nodev1.Figures{DowntimeMs: 84, CopyMs: 40, VoteMs: 9, CommitMs: 12, RunMs: 15, StopMs: 4, TotalMs: 9200,
				Passes: []*nodev1.Pass{{SentBytes: 800 << 20, Ms: 5100}, {SentBytes: 100 << 20, Ms: 900}}},
		}},
		snapshots: []*nodev1.SnapshotInfo{{Vm: vm("web"), Digest: digest, Bytes: 120 << 20, CreatedUnixNano: at, Owner: true},
			{Vm: vm("web"), Digest: digest, Bytes: 20 << 20, CreatedUnixNano: at - 1, Checkpoint: true}},
	}
}

// clock is a time that a test moves on.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func page(s *source) (*Page, *clock) {
	p, c := New("a", s), &clock{now: time.Unix(1_800_000_000, 0)}
	p.Now = c.Now
	return p, c
}

func get(t *testing.T, h http.Handler, path string) (string, *http.Response) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Body.String(), w.Result()
}

func wants(t *testing.T, body string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(body, w) {
			t.Errorf("%q is not on the page:\n%s", w, body)
		}
	}
}

// The page shows nodes, VMs in the words of a user, and how far each operation is.
func TestPage(t *testing.T) {
	p, _ := page(fixtures(time.Unix(1_800_000_000, 0)))
	body, resp := get(t, p, "/")
	wants(t, body, "asleep", "node c is lost", "10.88.0.7/16", `value="75"`, `value="25"`, "pass 2: 900 MiB sent",
		"push: 1 MiB of 4 MiB", "silent since 1 h ago", "2 of 3", "1.0 GiB")
	if csp := resp.Header.Get("Content-Security-Policy"); strings.Contains(csp, "unsafe") ||
		!strings.HasPrefix(csp, "default-src 'none'") {
		t.Errorf("policy %q", csp)
	}
	for _, inline := range []string{"<script>", "style=", "onclick", "javascript:"} {
		if strings.Contains(body, inline) {
			t.Errorf("the page has %s, which the policy forbids", inline)
		}
	}
}

// The page of a VM shows its snapshots, and where the time of a move went.
func TestVM(t *testing.T) {
	p, _ := page(fixtures(time.Unix(1_800_000_000, 0)))
	body, _ := get(t, p, "/vm?namespace=default&id=web")
	wants(t, body, "the VM sleeps as this", "checkpoint", "120 MiB", "stood still for 84 ms", "pass 2", "vote", "9 ms")
	if _, resp := get(t, p, "/vm?id=web"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without a namespace: %s", resp.Status)
	}
}

// Text of others is text: a name that is HTML makes no element, and one that moves a cursor none of its own.
func TestForeignText(t *testing.T) {
	s := fixtures(time.Unix(1_800_000_000, 0))
	evil := "<img src=x onerror=alert(1)>\u202e\x1b[2J"
	for _, info := range s.vms {
		info.Vm, info.Note, info.Status = &nodev1.VM{Namespace: evil, Id: evil}, evil, cmpStatus(info.GetStatus(), evil)
		info.Addresses, info.Owner = []string{evil}, &nodev1.Owner{Node: evil}
	}
	for _, m := range s.moves {
		m.Operation.Vm, m.Operation.Source, m.Operation.Reason, m.Waiting = s.vms[0].GetVm(), evil, evil, evil
	}
	s.nodes[0].Name, s.nodes[0].Version, s.warning = evil, evil, evil
	s.snapshots[0].Digest = evil
	p, _ := page(s)
	for _, path := range []string{"/", "/vm?namespace=a&id=b", "/vm?namespace=%3Cimg%3E&id=%3Cimg%20src=x%3E"} {
		body, _ := get(t, p, path)
		if strings.Contains(body, "<img") || strings.ContainsAny(body, "\u202e\x1b") {
			t.Errorf("%s: foreign text is not escaped:\n%s", path, body)
		}
	}
	body, _ := get(t, p, "/")
	wants(t, body, "&lt;img src=x onerror=alert(1)&gt;")
}

func cmpStatus(status, evil string) string {
	if status == "running" {
		return evil
	}
	return status
}

// A list that cannot be read is said to be old, with what was known last; it is never an empty list.
func TestAway(t *testing.T) {
	for what, says := range map[string]string{"vms": "VMs could not be read", "nodes": "Nodes could not be read",
		"moves": "Moves could not be read"} {
		s := fixtures(time.Unix(1_800_000_000, 0))
		p, c := page(s)
		s.set(what, true)
		body, _ := get(t, p, "/")
		wants(t, body, says, "Nothing is known of them", "store &lt;b&gt;away")
		if strings.Contains(body, "There are no VMs") || what != "nodes" && strings.Contains(body, "Nothing moves") {
			t.Errorf("%s: an error is shown as nothing:\n%s", what, body)
		}
		c.pass(time.Minute)
		s.set(what, false)
		body, _ = get(t, p, "/")
		if strings.Contains(body, "could not be read") {
			t.Errorf("%s: it came back and is shown as away:\n%s", what, body)
		}
		c.pass(time.Minute)
		s.set(what, true)
		body, _ = get(t, p, "/")
		wants(t, body, says, "what was known 1 min ago", "stale", "10.88.0.7/16", "v0.1.0", "pass 2")
	}
}

// A daemon without VMs says so.
func TestNone(t *testing.T) {
	p, _ := page(&source{})
	body, _ := get(t, p, "/")
	wants(t, body, "There are no VMs", "Nothing moves")
}

// Many pages ask the daemon once a second, not once each.
func TestOneLook(t *testing.T) {
	s := &source{}
	p, c := page(s)
	for range 5 {
		get(t, p, "/")
	}
	c.pass(fresh)
	get(t, p, "/")
	if s.asked != 2 {
		t.Errorf("asked %d times, want 2", s.asked)
	}
}

// A stream sends the live part as one event, ends with its reader, and only so many are served.
func TestStreams(t *testing.T) {
	p, _ := page(fixtures(time.Unix(1_800_000_000, 0)))
	server := httptest.NewServer(p)
	defer server.Close()
	open := func(ctx context.Context) *http.Response {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range maxStreams {
		resp := open(ctx)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		if !lines.Scan() || lines.Text() != "event: live" || !lines.Scan() ||
			!strings.HasPrefix(lines.Text(), "data: <section") {
			t.Fatalf("stream %d begins with %q", i, lines.Text())
		}
	}
	full := open(t.Context())
	full.Body.Close()
	if full.StatusCode != http.StatusServiceUnavailable || full.Header.Get("Retry-After") == "" {
		t.Errorf("one stream too many: %s", full.Status)
	}
	cancel()
	for len(p.streams) > 0 { // the test's own timeout ends a stream that never ends
		time.Sleep(time.Millisecond)
	}
	again := open(t.Context())
	again.Body.Close()
	if again.StatusCode != http.StatusOK {
		t.Errorf("after the others have ended: %s", again.Status)
	}
}

// No line of foreign text ends an event or begins another.
func TestMessage(t *testing.T) {
	got := string(message([]byte("a\r\n\rb\n\nevent: x\n")))
	if want := "event: live\ndata: a\ndata: b\ndata: \ndata: event: x\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
