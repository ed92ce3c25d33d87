// Package observer sees the probe from outside: by its beacons on the wire and by its
// answers over HTTP. What it says comes from the guest, never from godwit.
package observer

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"godwit.dev/godwit/integration/images"
)

const probePort = "8080"

// Dial connects to a guest.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Ask polls the guest over HTTP until it answers.
func Ask(ctx context.Context, dial Dial, address string) (images.ProbeState, error) {
	client := &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		Timeout:   time.Second,
	}
	url := "http://" + net.JoinHostPort(address, probePort)
	for {
		state, err := get(ctx, client, url)
		if err == nil {
			return state, nil
		}
		if wait := Pause(ctx, 10*time.Millisecond); wait != nil {
			return images.ProbeState{}, fmt.Errorf("ask the guest at %s: %w", address, err)
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) (images.ProbeState, error) {
	var state images.ProbeState
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return state, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return state, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return state, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return state, json.NewDecoder(resp.Body).Decode(&state)
}

// Pause waits for d, or for the end of ctx, which is an error.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
