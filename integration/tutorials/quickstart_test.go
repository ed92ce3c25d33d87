//go:build integration

// Package tutorials plays the tutorials of docs/ on real nodes, command by command.
package tutorials

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// block of a page between two fences.
type block struct {
	language string
	text     string
}

var fences = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "tutorials", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fences.FindAllStringSubmatch(string(text), -1) {
		all = append(all, block{m[1], m[2]})
	}
	return all
}

// readers take so long at least to read on.
const readers = 3 * time.Second

// player plays the blocks of a page on one node.
type player struct {
	*testing.T
	n       *harness.Node
	replace *strings.Replacer
	printed string // by the last block of commands
	played  int    // commands
	shown   int    // outputs that were compared
}

// programs that the commands of a page begin with.
var programs = regexp.MustCompile(`^(ctr|godwit|uname|tail|apt-get|systemctl) `)

func (p *player) play(b block) {
	p.Helper()
	text := p.replace.Replace(b.text)
	switch {
	case b.language == "toml":
		dir := filepath.Join(filepath.Dir(p.n.Config), "config.d")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			p.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "tutorial.toml"), []byte(text), 0o600); err != nil {
			p.Fatal(err)
		}
	case programs.MatchString(b.text):
		p.printed = ""
		for line := range strings.Lines(text) {
			p.command(strings.TrimSpace(line))
		}
	default:
		p.compare(text)
	}
}

// command runs a line in a shell of the node. The package is installed by other tests, and the node's
// image is there already.
func (p *player) command(line string) {
	p.Helper()
	switch {
	case strings.HasPrefix(line, "apt-get "), strings.HasPrefix(line, "ctr image pull "):
		return
	case line == "systemctl restart godwitd":
		if err := p.n.Godwitd.Stop(); err != nil {
			p.Fatal(err)
		}
		if err := p.n.StartGodwitd(p.Context()); err != nil {
			p.Fatal(err)
		}
		return
	}
	script := fmt.Sprintf("ctr() { command ctr --address %s \"$@\"; }\n%s", p.n.Socket, line)
	if strings.HasPrefix(line, "godwit hibernate ") {
		time.Sleep(readers) // the VM has counted by then
	}
	out, err := p.n.Run(p.Context(), "sh", "-c", script)
	for begun := time.Now(); strings.HasPrefix(line, "tail ") && out == "" && time.Since(begun) < 20*readers; {
		time.Sleep(readers)
		out, err = p.n.Run(p.Context(), "sh", "-c", script)
	}
	p.Logf("$ %s\n%s", line, out)
	if err != nil {
		p.Fatalf("%s: %v", line, err)
	}
	p.played++
	p.printed += out
}

var (
	number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	digest = regexp.MustCompile(`sha256:[0-9a-f.]+`)
	blanks = regexp.MustCompile(`\s+`)
)

// shape is an output without what differs from run to run.
func shape(text string) string {
	text = digest.ReplaceAllString(text, "DIGEST")
	text = number.ReplaceAllString(text, "N")
	return strings.TrimSpace(blanks.ReplaceAllString(text, " "))
}

// compare an output that the page shows with what the commands before have printed.
func (p *player) compare(text string) {
	p.Helper()
	p.shown++
	if got, want := shape(p.printed), shape(text); got != want {
		p.Errorf("the page shows\n%s\nand the commands print\n%s", want, got)
	}
}

// Each command of the quickstart does what the page says, in its order, and prints what it shows. The
// VM counts on after its sleep.
func TestQuickstart(t *testing.T) {
	h := harness.New(t, harness.Options{Godwitd: true, Images: true})
	n := h.Node(0)
	log := filepath.Join(n.Dir, "web.log")
	p := &player{T: t, n: n, replace: strings.NewReplacer(
		"/var/lib/godwit/store", filepath.Join(n.Dir, "store"), "/tmp/web.log", log,
		"pull IMAGE", "pull "+images.Busybox, "v1 IMAGE", "v1 "+images.Busybox, "alpine:3.20", images.Busybox,
		"alpha", n.Name,
	)}
	for _, b := range blocks(t, "quickstart.md") {
		p.play(b)
		if strings.Contains(b.text, "web.log") {
			if counted := number.FindString(p.printed); counted == "" || counted == "1" {
				t.Errorf("after its wake the VM counts from %q", counted)
			}
		}
	}
	if p.played < 10 || p.shown < 2 {
		t.Errorf("%d commands were played and %d outputs compared: the page has more", p.played, p.shown)
	}
}
