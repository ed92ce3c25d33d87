package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/daemon/dashboard/dashboardtest"
)

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

func page(s *dashboardtest.Source) (*Page, *clock) {
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
	p, _ := page(dashboardtest.Fixtures(time.Unix(1_800_000_000, 0)))
	body, resp := get(t, p, "/")
	wants(t, body, "asleep", "node c is lost", "10.88.0.7/16", `value="75"`, `value="25"`, "pass 2: 900 MiB sent",
		"push: 1 MiB of 4 MiB", "silent, last heard 1 h ago", "2 of 3", "1.0 GiB")
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
	p, _ := page(dashboardtest.Fixtures(time.Unix(1_800_000_000, 0)))
	body, _ := get(t, p, "/vm?namespace=default&id=web")
	wants(t, body, "the VM has gone on from it", "checkpoint by hand, pinned", "before-upgrade", "120 MiB",
		">| *</span> 333333333333", ">*</span> 555555555555", "stood still for 84 ms", "pass 2", "vote", "9 ms")
	if _, resp := get(t, p, "/vm?id=web"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without a namespace: %s", resp.Status)
	}
}

// A move is a bar of its passes and its pause, one after the other, as long as all of it. A pause that is a thousandth
// of it can be seen. Figures that are no times make no bar.
func TestTimeline(t *testing.T) {
	figures := func(total, down float64, passes ...float64) *nodev1.Figures {
		f := &nodev1.Figures{TotalMs: total, DowntimeMs: down}
		for _, ms := range passes {
			f.Passes = append(f.Passes, &nodev1.Pass{Ms: ms})
		}
		return f
	}
	bar := timeline(figures(10_000, 10, 8000, 1000))
	classes, end := "", 0.0
	for _, s := range bar {
		x, _ := strconv.ParseFloat(s.X, 64)
		width, _ := strconv.ParseFloat(s.Width, 64)
		if math.Abs(x-end) > 0.02 || width < thin {
			t.Errorf("%+v begins at %v, want %v", s, x, end)
		}
		end, classes = x+width, classes+s.Class+" "
	}
	if classes != "before pass pass pause " || math.Abs(end-100) > 0.1 || !strings.Contains(bar[3].Title, "10 ms") {
		t.Errorf("%+v", bar)
	}
	if bar := timeline(figures(5, 10, 3)); len(bar) != 2 { // the parts are more than the whole: nothing came before
		t.Errorf("%+v", bar)
	}
	for name, f := range map[string]*nodev1.Figures{"none": nil, "zero": figures(0, 0), "negative": figures(10, -1, 3),
		"no number": figures(math.NaN(), 1, math.NaN()), "infinite": figures(math.Inf(1), 1),
		"more than fits": figures(1, math.MaxFloat64, math.MaxFloat64), "very many": figures(1, 1, make([]float64, 400)...),
	} {
		if bar := timeline(f); bar != nil {
			t.Errorf("%s: %+v", name, bar)
		}
	}
}

// Text of others is text: a name that is HTML makes no element, and one that moves a cursor none of its own.
func TestForeignText(t *testing.T) {
	s := dashboardtest.Fixtures(time.Unix(1_800_000_000, 0))
	evil := "<img src=x onerror=alert(1)>\u202e\x1b[2J"
	for _, info := range s.VMList {
		info.Vm, info.Note, info.Status = &nodev1.VM{Namespace: evil, Id: evil}, evil, cmpStatus(info.GetStatus(), evil)
		info.Addresses, info.Owner = []string{evil}, &nodev1.Owner{Node: evil}
	}
	for _, m := range s.MoveList {
		m.Operation.Vm, m.Operation.Source, m.Operation.Reason, m.Waiting = s.VMList[0].GetVm(), evil, evil, evil
	}
	s.NodeList[0].Name, s.NodeList[0].Version, s.Warning = evil, evil, evil
	s.Snapshot[0].Digest = evil
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
		s := dashboardtest.Fixtures(time.Unix(1_800_000_000, 0))
		p, c := page(s)
		s.Away(what)
		body, _ := get(t, p, "/")
		wants(t, body, says, "Nothing is known of them", "store &lt;b&gt;away")
		if strings.Contains(body, "There are no VMs") || what != "nodes" && strings.Contains(body, "Nothing moves") {
			t.Errorf("%s: an error is shown as nothing:\n%s", what, body)
		}
		c.pass(time.Minute)
		s.Away()
		body, _ = get(t, p, "/")
		if strings.Contains(body, "could not be read") {
			t.Errorf("%s: it came back and is shown as away:\n%s", what, body)
		}
		c.pass(time.Minute)
		s.Away(what)
		body, _ = get(t, p, "/")
		wants(t, body, says, "what was known 1 min ago", "stale", "10.88.0.7/16", "v0.1.0", "pass 2")
	}
}

// Of very many VMs and moves the page shows some, those that need a person first, and says how many it leaves away.
func TestMany(t *testing.T) {
	s := dashboardtest.Fixtures(time.Unix(1_800_000_000, 0))
	for i := range 20_000 {
		s.VMList = append(s.VMList, &nodev1.VMInfo{Vm: dashboardtest.VM(fmt.Sprint("many-", i)), Status: "running"})
		s.MoveList = append(s.MoveList, &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: fmt.Sprint(i),
			Vm: dashboardtest.VM(fmt.Sprint("moves-", i)), Kind: nodev1.Kind_KIND_MIGRATE}})
	}
	p, _ := page(s)
	body, _ := get(t, p, "/")
	wants(t, body, ">gone<", "node c is lost", "19505 more", "19502 more", "20001") // of 20,005, 20,002; running
	if n := strings.Count(body, "<tr>") + strings.Count(body, "<li>"); n > 2*maxRows+10 {
		t.Errorf("the page has %d rows", n)
	}
}

// What sleepers freed is told of those of which it is known, and never as nothing: a list that fails proves none.
func TestSaved(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := dashboardtest.Fixtures(now)
	p, c := page(s)
	body, _ := get(t, p, "/")
	wants(t, body, "<dd>2.0 GiB</dd>", "72.0 GiB-hours<") // 2 GiB for 36 hours
	s.VMList = append(s.VMList, &nodev1.VMInfo{Vm: dashboardtest.VM("old"), Status: "hibernated",
		Owner: &nodev1.Owner{Digest: "sha256:old"}})
	s.Away("snapshots")
	c.pass(rare)
	body, _ = get(t, p, "/")
	wants(t, body, "<dd>2.0 GiB</dd>", "of 1 VMs it is not known")
	p, _ = page(s)
	body, _ = get(t, p, "/")
	wants(t, body, "<dd>?</dd>", "it is not known")
	sleeper := &nodev1.VMInfo{Vm: dashboardtest.VM("x"), Status: "hibernated", Owner: &nodev1.Owner{Digest: "d"}}
	if got := savingOf([]*nodev1.VMInfo{sleeper},
		[]*nodev1.SnapshotInfo{{Vm: dashboardtest.VM("y"), Digest: "d", Owner: true, RamBytes: 1, CreatedUnixNano: 1},
			{Vm: dashboardtest.VM("x"), Digest: "d", Owner: true, RamBytes: 8,
				CreatedUnixNano: now.Add(time.Hour).UnixNano()}}, now); got != (saving{RAM: 8, Known: 1}) {
		t.Errorf("a clock that is ahead, and another VM's snapshot: %+v", got)
	}
}

// A daemon without VMs says so.
func TestNone(t *testing.T) {
	p, _ := page(&dashboardtest.Source{})
	body, _ := get(t, p, "/")
	wants(t, body, "There are no VMs", "Nothing moves")
}

// Many pages ask the daemon once a second, not once each.
func TestOneLook(t *testing.T) {
	s := &dashboardtest.Source{}
	p, c := page(s)
	for range 5 {
		get(t, p, "/")
	}
	c.pass(fresh)
	get(t, p, "/")
	if s.Asked() != 2 {
		t.Errorf("asked %d times, want 2", s.Asked())
	}
}

// A stream sends the live part as one event, ends with its reader, and only so many are served.
func TestStreams(t *testing.T) {
	p, _ := page(dashboardtest.Fixtures(time.Unix(1_800_000_000, 0)))
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
