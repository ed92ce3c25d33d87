//go:build integration

package browser

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// Columns and rows of the terminal in the pictures.
const (
	columns = 100
	rows    = 40
)

// shots are the pictures of the terminal: what is typed at node a, line by line.
var shots = []struct {
	name  string
	lines []string
}{
	{"terminal-ps", []string{"godwit hibernate db", "godwit ps", "godwit exec db true"}},
	{"terminal-migrate", []string{"godwit migrate api --to b", "godwit ps"}},
	{"terminal-history", []string{"godwit checkpoint web --name before-upgrade", "godwit hibernate web",
		"godwit wake web", "godwit snapshot history web"}},
}

// TestTerminalScreenshots shows that what verbs print on a terminal fits it, on two nodes with real VMs.
// GODWIT_SCREENSHOTS names the directory that gets the pictures.
func TestTerminalScreenshots(t *testing.T) {
	dir := os.Getenv("GODWIT_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Images: true, Godwitd: true})
	n := h.Node(0)
	if err := harness.Poll(t.Context(), patience, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, "nodes", "-q")
		if err == nil && len(strings.Fields(out)) < len(h.Nodes()) {
			err = fmt.Errorf("not all nodes are there: %s", out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, vm := range []string{"web", "api", "db"} {
		n.Godwit(t, "run", "-d", "--name", vm, images.Busybox, "sleep", "1000000")
	}
	c := start(t)
	for _, shot := range shots {
		screen := ""
		for _, line := range shot.lines {
			out := typed(t, n, line)
			for _, shown := range strings.Split(plain(out), "\n") {
				if len([]rune(shown)) > columns {
					t.Errorf("%s: a line of %d columns: %s", line, len([]rune(shown)), shown)
				}
			}
			screen += "\x1b[1m$ " + line + "\x1b[0m\n" + out
		}
		draw(t, c, screen, filepath.Join(dir, shot.name+".png"))
	}
}

// typed runs a line at a shell of the node that has a terminal, and answers what stands there in the end, with colours.
func typed(t *testing.T, n *harness.Node, line string) string {
	t.Helper()
	master, slave, err := harness.OpenPTY()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
	cmd := n.Command(t.Context(), "sh", "-c", line)
	cmd.Env = append(cmd.Env, "GODWIT_CONFIG="+n.Config, "TERM=xterm-256color", "LANG=C.UTF-8")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	if err := n.Enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	written, _ := io.ReadAll(master) // EIO, once the last program has closed its end
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return overwritten(string(written))
}

// overwritten is what stands on the lines: a carriage return goes back to the begin of its line.
func overwritten(text string) string {
	var lines []string
	for _, line := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		parts := strings.Split(line, "\r")
		lines = append(lines, strings.TrimRight(parts[len(parts)-1], " "))
	}
	return strings.Join(lines, "\n")
}

var escape = regexp.MustCompile(`\x1b\[([0-9;]*)([A-Za-z])`)

func plain(text string) string { return escape.ReplaceAllString(text, "") }

// colours of a light terminal, by the number of the escape sequence.
var colours = map[string]string{"31": "#cf222e", "32": "#116329", "33": "#7d4e00", "34": "#0550ae", "90": "#57606a"}

// inHTML is the text of a terminal as HTML.
func inHTML(text string) string {
	out, open := &strings.Builder{}, false
	last := 0
	for _, at := range escape.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(html.EscapeString(text[last:at[0]]))
		last = at[1]
		if open {
			out.WriteString("</span>")
		}
		open = false
		if code := text[at[2]:at[3]]; code == "1" || colours[code] != "" {
			open = true
			style := "font-weight:bold"
			if colours[code] != "" {
				style = "color:" + colours[code]
			}
			fmt.Fprintf(out, `<span style="%s">`, style)
		}
	}
	out.WriteString(html.EscapeString(text[last:]))
	if open {
		out.WriteString("</span>")
	}
	return out.String()
}

// draw writes a picture of a terminal.
func draw(t *testing.T, c *chromium, text, file string) {
	t.Helper()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintf(w, `<!doctype html><title>terminal</title><body style="margin:0;background:#fff">
<pre id="screen" style="margin:0;padding:14px 16px;width:%dch;font:14px/1.45 'DejaVu Sans Mono',monospace;
background:#f6f8fa;white-space:pre-wrap;word-break:break-all;
border:1px solid #d0d7de;border-radius:8px;color:#1f2328">%s</pre>`, columns,
			inHTML(strings.TrimRight(text, "\n")))
	}))
	defer page.Close()
	p := c.open(page.URL)
	p.until("document.title === 'terminal' && document.getElementById('screen')")
	p.look(columns*9, 10, "light")
	var width, height int
	box := p.eval("(e => e.offsetWidth + ' ' + e.offsetHeight)(document.getElementById('screen'))")
	if _, err := fmt.Sscanf(strings.Trim(box, `"`), "%d %d", &width, &height); err != nil {
		t.Fatal(err)
	}
	p.look(width, height, "light")
	p.picture(file)
}
