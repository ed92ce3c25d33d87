//go:build integration

package usability

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/harness"
)

var update = flag.Bool("update", false, "write the screens as they are now")

// result is out/usability.json: how many steps there are, and how many printed the screen that is expected. The
// commands are those from a clean Debian 12 to the first VM that slept and woke, and the seconds are theirs.
type result struct {
	Steps    int     `json:"steps"`
	Passed   int     `json:"passed"`
	Commands int     `json:"commands,omitempty"` // absent: not measured before
	Seconds  float64 `json:"seconds,omitempty"`
}

// TestUsability shows that each step of a docker user's day prints the screen that was reviewed.
func TestUsability(t *testing.T) {
	steps, err := readSteps("testdata/steps.txt")
	if err != nil {
		t.Fatal(err)
	}
	// No registry is configured: VMs sleep in the store that a node has by itself.
	h := harness.New(t, harness.Options{Images: true, Godwitd: true})
	n := h.Node(0)
	r := result{Steps: len(steps)}
	for _, s := range steps {
		ok := t.Run(s.name, func(t *testing.T) { s.compare(t, s.run(t, n)) })
		if ok {
			r.Passed++
		}
	}
	if err := errors.Join(r.fromNothing(), r.write()); err != nil {
		t.Fatal(err)
	}
	t.Logf("usability: %d of %d steps, %d commands to a VM that slept and woke, %.1f s", r.Passed, r.Steps,
		r.Commands, r.Seconds)
}

// fromNothing reads what integration/install has measured on a clean system.
func (r *result) fromNothing() error {
	top, err := harness.Root()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(top, "out", "install.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the ring runs both at once
	} else if err != nil {
		return err
	}
	var all []struct {
		Release  string
		Commands int
		Seconds  float64
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("out/install.json: %w", err)
	}
	for _, one := range all {
		if one.Release == "Debian 12" {
			r.Commands, r.Seconds = one.Commands, one.Seconds
			return nil
		}
	}
	return errors.New("out/install.json knows no Debian 12")
}

func (r result) write() error {
	top, err := harness.Root()
	if err != nil {
		return err
	}
	return harness.WriteResult(filepath.Join(top, "out", "usability.json"), r)
}

// run types the command at a shell of the node and answers the screen: what it printed, in the order of stdout and
// stderr as a user sees it, and its exit code.
func (s step) run(t *testing.T, n *harness.Node) string {
	t.Helper()
	cmd := n.Command(t.Context(), "sh", "-c", s.command)
	cmd.Env = append(cmd.Env, "GODWIT_CONFIG="+n.Config, "NO_COLOR=1", "COLUMNS=100")
	var screen bytes.Buffer
	cmd.Stdout, cmd.Stderr = &screen, &screen
	if err := n.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	code, err := 0, cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("$ %s\n%s[exit code %d]\n", s.command, normal(screen.String()), code)
}

// compare wants the screen that was reviewed.
func (s step) compare(t *testing.T, screen string) {
	t.Helper()
	file := filepath.Join("testdata", s.file())
	if *update {
		if err := os.WriteFile(file, []byte(screen), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("no screen was reviewed for this step: %v; it is now:\n%s", err, screen)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(screen, "\n")); d != "" {
		t.Errorf("%s (-reviewed +now):\n%s", s.command, d)
	}
}
