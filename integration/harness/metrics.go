package harness

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Metrics are those of the node's godwitd, by name and labels as Prometheus writes them.
func (n *Node) Metrics(ctx context.Context) (map[string]float64, error) {
	socket := fmt.Sprintf("/proc/%d/root%s", n.Godwitd.PID(), filepath.Join(n.Dir, "run", "metrics.sock"))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://godwitd/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read metrics of node %s: %w", n.Name, err)
	}
	defer resp.Body.Close()
	all := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if number, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name+"}"] = number
		}
	}
	return all, nil
}

// WantMetrics compares some of them.
func (n *Node) WantMetrics(t testing.TB, want map[string]float64) {
	t.Helper()
	got, err := n.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range want {
		if is, ok := got[name]; !ok || is != value {
			t.Errorf("metric %s of node %s is %v (there: %v), want %v", name, n.Name, is, ok, value)
		}
	}
}
