//go:build integration

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

var example = regexp.MustCompile("(?ms)^```(sh|python)\n(.*?)^```$")

// TestExamples runs the example programs of the documentation on a node: shell, Python and Go.
func TestExamples(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP})
	d := &day{t, h.Node(0), h}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "how-to", "scripts.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"sh": {"the command ended with 7\n", "default/nightly removed\n"},
		"python": {images.Busybox + " True\n", "\nNotFound\n"}}
	for _, m := range example.FindAllStringSubmatch(string(page), -1) {
		file := filepath.Join(h.Dir, "example."+m[1])
		if err := os.WriteFile(file, []byte("# "+m[1]+"\n"+m[2]), 0o600); err != nil {
			t.Fatal(err)
		}
		program := map[string]string{"sh": "sh", "python": "python3"}[m[1]]
		d.prints(want[m[1]], "env", "IMAGE="+images.Busybox, program, file)
		delete(want, m[1])
		d.empty()
	}
	if len(want) > 0 {
		t.Errorf("the page has no example of %v", want)
	}
	program, err := h.Build(t.Context(), "day")
	if err != nil {
		t.Fatal(err)
	}
	d.prints([]string{"worker sleeps as sha256:", "it is not started: worker sleeps. To wake it: godwit wake worker",
		"worker runs on a\n", "worker is removed\n"}, program, images.Busybox)
	d.empty()
}

// prints runs a program on the node, which succeeds and prints all the words.
func (d *day) prints(words []string, program string, args ...string) {
	d.Helper()
	out, err := d.n.Run(d.Context(), program, args...)
	if err != nil {
		d.Fatal(err)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			d.Errorf("%s %s: %q, want %q", program, strings.Join(args, " "), out, w)
		}
	}
}
