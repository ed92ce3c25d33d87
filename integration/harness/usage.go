package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Usage is what a daemon holds.
type Usage struct {
	Files      int `json:"files"`
	Goroutines int `json:"goroutines"`
	KiB        int `json:"kib"` // resident
}

// Usage measures the node's daemons, by name. It needs Options.Debug.
func (n *Node) Usage(ctx context.Context) (map[string]Usage, error) {
	out := map[string]Usage{}
	for name, of := range map[string]struct {
		pid          int
		socket, path string
		before       string // of the number of goroutines
	}{
		"containerd": {n.Containerd.PID(), filepath.Join(n.Dir, "debug.sock"), "/debug/pprof/goroutine?debug=1",
			"goroutine profile: total "},
		"godwitd": {n.Godwitd.PID(), filepath.Join(n.Dir, "run", "metrics.sock"), "/metrics", "\ngo_goroutines "},
	} {
		u, err := UsageOf(of.pid)
		if err != nil {
			return nil, err
		}
		text, err := ask(ctx, fmt.Sprintf("/proc/%d/root%s", of.pid, of.socket), of.path)
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(text, of.before)
		number, _, _ := strings.Cut(rest, "\n")
		if u.Goroutines, err = strconv.Atoi(number); err != nil {
			return nil, fmt.Errorf("goroutines of %s: %w", name, err)
		}
		out[name] = u
	}
	return out, nil
}

// UsageOf measures any process; its goroutines are not known.
func UsageOf(pid int) (u Usage, err error) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return u, err
	}
	u.Files = len(files)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(status))
	at := slices.Index(fields, "VmRSS:")
	if at < 0 || at+1 == len(fields) {
		return u, fmt.Errorf("process %d has no memory: it has ended", pid)
	}
	u.KiB, err = strconv.Atoi(fields[at+1])
	return u, err
}

// ask gets a page over a unix socket.
func ask(ctx context.Context, socket, path string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

// CPU is the time that all processes of the node have used so far, also those that ended.
func (n *Node) CPU() (time.Duration, error) {
	text, err := os.ReadFile(n.Cgroup("cpuacct", "cpuacct.usage"))
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(used), err
}
