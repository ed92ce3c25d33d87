package cloudhypervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// turn is a request, as it goes over the wire, and what must come back.
type turn struct {
	what    string
	request string
	status  int
	answer  string // "reasons", "ping", "info STATE" or nothing: the body does not matter
}

func put(call, body string) string {
	return fmt.Sprintf("PUT /api/v1/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
		"%d\r\n\r\n%s", call, len(body), body)
}

func get(call string) string { return "GET /api/v1/" + call + " HTTP/1.1\r\nHost: x\r\n\r\n" }

// conversation is what the fake and the real one agree on; nothing in it runs a guest.
// dir has room for a file of RAM.
func conversation(dir string) []turn {
	vm := fmt.Sprintf(`{"cpus":{"boot_vcpus":1,"max_vcpus":1},"memory":{"size":0,"zones":[`+
		`{"id":"ram","size":67108864,"file":%q,"shared":true}]},`+
		`"payload":{"kernel":"/nowhere"},"console":{"mode":"Off"},"serial":{"mode":"Null"}}`,
		filepath.Join(dir, "conversation.ram"))
	return []turn{
		{"ping", get("vmm.ping"), 200, "ping"},
		{"info without a VM", get("vm.info"), 404, "reasons"},
		{"unknown call", put("vm.sing", ""), 404, ""},
		{"other verb", "POST /api/v1/vm.boot HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 400, ""},
		{"chunked body", "PUT /api/v1/vm.create HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400, ""},
		{"no JSON", put("vm.create", "{"), 400, "reasons"},
		{"boot without a VM", put("vm.boot", ""), 404, "reasons"},
		{"pause without a VM", put("vm.pause", ""), 500, "reasons"},
		{"restore of nothing", put("vm.restore", `{"source_url":"file:///nowhere"}`), 500, "reasons"},
		{"descriptors declared and not sent",
			put("vm.restore", `{"source_url":"file:///nowhere","net_fds":[{"id":"a","num_fds":1}]}`), 400, "reasons"},
		{"create", put("vm.create", vm), 204, ""},
		{"create again", put("vm.create", vm), 500, "reasons"},
		{"info", get("vm.info"), 200, "info Created"},
		{"pause before the boot", put("vm.pause", ""), 500, "reasons"},
		{"a body where none is allowed", put("vm.resume", "{}"), 400, ""},
		{"restore into a VM", put("vm.restore", `{"source_url":"file:///nowhere"}`), 500, "reasons"},
		{"still the same", get("vm.info"), 200, "info Created"},
	}
}

// TestConversation shows that the fake is like the real one, which has the same test in
// the KVM ring.
func TestConversation(t *testing.T) {
	cfg := testConfig(t)
	cfg.Incoming = true
	m := startFake(t, fakeVMM(t, "works", 0), cfg)
	converse(t, m.Process().Control, cfg.Dir)
}

func converse(t *testing.T, socket, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "conversation.ram"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "conversation.ram"), 64<<20); err != nil {
		t.Fatal(err)
	}
	for _, turn := range conversation(dir) {
		status, body, err := say(socket, turn.request)
		if err != nil {
			t.Errorf("%s: %v", turn.what, err)
			continue
		}
		if status != turn.status || !fitsAnswer(turn.answer, body) {
			t.Errorf("%s: got %d %.300s, want %d with %q", turn.what, status, body, turn.status, turn.answer)
		}
	}
	tooMany(t, socket)
}

// say sends one request on a connection of its own.
func say(socket, request string) (int, []byte, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, nil, err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return 0, nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	if _, reason, _ := strings.Cut(response.Status, " "); strings.TrimSpace(reason) != "" {
		return 0, nil, fmt.Errorf("reason phrase %q", reason)
	}
	if response.ContentLength < 0 { // no length, and the connection stays open
		return response.StatusCode, nil, nil
	}
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

func fitsAnswer(want string, body []byte) bool {
	switch kind, state, _ := strings.Cut(want, " "); kind {
	case "reasons":
		var reasons []string
		return json.Unmarshal(body, &reasons) == nil && len(reasons) > 0
	case "ping":
		var ping struct{ Version string }
		return json.Unmarshal(body, &ping) == nil && ping.Version != ""
	case "info":
		var info struct{ State string }
		return json.Unmarshal(body, &info) == nil && info.State == state
	}
	return true
}

// tooMany: a client that comes after ten connections is sent away.
func tooMany(t *testing.T, socket string) {
	t.Helper()
	for range 10 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// Held open by half a request.
		if _, err := io.WriteString(conn, "GET /api/v1/vmm.ping HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for {
		status, _, err := say(socket, get("vmm.ping"))
		if err == nil && status == 503 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the eleventh connection: got %d, %v, want 503", status, err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
