//go:build integration

package move

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Both nodes of a live move tell of it in their events, the node without the controller too: it begins, switches and
// is done. The log of the VM goes on over the move: the node that has it shows what it wrote on the other one too,
// without a line lost or twice. A node that does not answer is named.
func TestEventsOfAMove(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	heard(t, a, "a", "b")
	a.Godwit(t, "run", "-d", "--name", "web", images.Busybox, "sh", "-c",
		"i=0; while :; do echo line $i; i=$((i+1)); sleep 1; done")
	a.Godwit(t, "migrate", "web", "--to", "b", "--mode", "live")
	for _, n := range []*harness.Node{a, b} {
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			text, err := n.RunGodwit(ctx, "events", "--since", "0", "--until", "0s", "-f", "vm=web", "-f", "type=move",
				"--format", "{{.phase}} {{.source}} {{.destination}}")
			want := []string{"begun a b", "switching a b", "committed a b", "done a b"}
			if got := strings.Split(strings.TrimSpace(text), "\n"); err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("node %s tells %q, want %q", n.Name, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		t.Log(n.Name, "\n", n.Godwit(t, "events", "--since", "0", "--until", "0s"))
	}
	here := strings.Count(a.Godwit(t, "logs", "web"), "\n") // that it has written on a
	inOrder(t, b, here+2)
	b.Godwit(t, "stop", "--time", "0", "web")
	b.Godwit(t, "start", "web") // its container was made by the move, and has a log all the same
	all := inOrder(t, b, here+2)
	if n := strings.Count(all, "line 0\n"); n < 2 {
		err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
			again, err := b.RunGodwit(ctx, "logs", "web")
			if err == nil && strings.Count(again, "line 0\n") < 2 {
				err = fmt.Errorf("the log of a VM that was started again ends with %q", again)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if err := a.Godwitd.Kill(); err != nil {
		t.Fatal(err)
	}
	var out, noted strings.Builder
	cmd := b.Command(t.Context(), "godwit", "logs", "web")
	cmd.Stdout, cmd.Stderr = &out, &noted
	if err := errors.Join(b.Enter(cmd.Start), cmd.Wait()); err != nil || strings.HasPrefix(out.String(), "line 0\n") ||
		!strings.Contains(noted.String(), "missing") {
		t.Errorf("without node a: %.100q, noted %q, %v", out.String(), noted.String(), err)
	}
	if err := a.StartGodwitd(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Godwit(t, "stop", "--time", "0", "web")
	b.Godwit(t, "rm", "-f", "web")
}

// inOrder reads the log of web on the node where it is: in whole, the last lines, with times, and followed. It has so
// many lines at least, from the first on, none of them missing or twice. A line 0 begins a new run.
func inOrder(t *testing.T, n *harness.Node, least int) (all string) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) (err error) {
		if all, err = n.RunGodwit(ctx, "logs", "web"); err == nil && strings.Count(all, "\n") < least {
			err = fmt.Errorf("the log on %s, of which %d lines are wanted: %q", n.Name, least, all)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(all), "\n")
	next := 0
	for i, line := range lines {
		if line == "line 0" {
			next = 0
		}
		if line != fmt.Sprintf("line %d", next) {
			t.Fatalf("line %d is %q", i, line)
		}
		next++
	}
	if tail := n.Godwit(t, "logs", "--tail", fmt.Sprint(least), "web"); strings.Count(tail, "\n") != least {
		t.Errorf("--tail %d: %q", least, tail)
	}
	timed := strings.Split(strings.TrimSpace(n.Godwit(t, "logs", "-t", "web")), "\n")
	if len(timed) < len(lines) || strings.HasPrefix(timed[0], "-") || !strings.HasSuffix(timed[0], "Z "+lines[0]) {
		t.Fatalf("with times: %q", timed)
	}
	from, _, _ := strings.Cut(timed[1], " ")
	if since := n.Godwit(t, "logs", "--since", from, "web"); !strings.HasPrefix(since, lines[1]+"\n") {
		t.Errorf("since %s: %.40q", from, since)
	}
	follow(t, n, len(lines)+1)
	return all
}

// follow reads so many lines of a log that is followed, which begins with the first one.
func follow(t *testing.T, n *harness.Node, lines int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := n.Command(ctx, "godwit", "logs", "-f", "web")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = n.Enter(cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	first, r := "", bufio.NewScanner(out)
	for i := 0; i < lines && r.Scan(); i++ {
		if i == 0 {
			first = r.Text()
		}
		if i == lines-1 {
			lines = 0
		}
	}
	if lines > 0 || first != "line 0" {
		t.Errorf("followed from %q, %d lines are missing: %v", first, lines, ctx.Err())
	}
	cancel()
	_ = cmd.Wait()
}
