//go:build integration

package nerdctl

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/images"
)

// get asks a service at a port of the node.
func (s *site) get(ctx context.Context, port, path string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: s.h.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(s.Address, port)+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// Images as people have them, each with its own command.
func (s *site) testImages(t *testing.T) {
	t.Run("debian", func(t *testing.T) {
		out := s.ok(t, "run", "--rm", "--runtime", runtimeName, images.Debian, "bash", "-ec",
			`dpkg-query -W -f '${Package} ${Status}\n' bash; . /etc/os-release; echo $ID; (exit 3) || echo $?; `+
				`printf '%s\n' {a,b}{1,2} | sort -r | head -n1; date -u -d @0 +%F`)
		if out != "bash install ok installed\ndebian\n3\nb2\n1970-01-01\n" {
			t.Errorf("debian says %q", out)
		}
	})
	t.Run("python", func(t *testing.T) {
		s.detached(t, "python", "-p", "8000:80", images.Python)
		eventually(t, "ask the service", func(ctx context.Context) error {
			body, err := s.get(ctx, "8000", "/hello")
			if err != nil || !strings.HasPrefix(body, "/hello ") {
				return fmt.Errorf("%q: %w", body, err)
			}
			return nil
		})
		s.ok(t, "stop", "python") // its stop signal is SIGINT
		if log := s.ok(t, "logs", "python"); s.field(t, "python", "{{.State.ExitCode}}") == "137" {
			t.Errorf("SIGINT did not end it: %s", log)
		}
	})
	// Nothing but one binary: no /etc, no shell, no /tmp.
	t.Run("from scratch", func(t *testing.T) {
		s.detached(t, "scratch", "-p", "8001:8080", images.Scratch)
		eventually(t, "ask the program", func(ctx context.Context) error {
			body, err := s.get(ctx, "8001", "/")
			if err != nil || !strings.Contains(body, `"nonce"`) {
				return fmt.Errorf("%q: %w", body, err)
			}
			return nil
		})
		if r := s.nerdctl(t, "exec", "scratch", "sh"); r.code == 0 ||
			!strings.Contains(r.errs, `executable file not found in $PATH`) {
			t.Errorf("a shell in it: %+v", r)
		}
	})
}
