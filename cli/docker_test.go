package cli

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateDocker = flag.Bool("update-docker", false, "write the tables of docs/how-to/docker.md anew")

// dockerWords are the lines of a file of testdata.
func dockerWords(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// Each flag of docker run, as its own help lists them, works in godwit run or is refused with what to use instead. No
// text is there for a flag that works, or that docker has not.
func TestDockerFlags(t *testing.T) {
	run := newRun(&options{}).Flags()
	docker := dockerWords(t, "docker-run-flags.txt")
	for _, name := range docker {
		if works, instead := run.Lookup(name) != nil, dockerRunFlags[name]; works == (instead != "") {
			t.Errorf("--%s: works: %v, instead: %q", name, works, instead)
		} else if !works {
			refused(t, []string{"run", "--" + name, "x"}, "it has no flag --"+name, strings.TrimSuffix(instead, " %s."))
		}
	}
	for name := range dockerRunFlags {
		if !slices.Contains(docker, name) {
			t.Errorf("docker has no flag --%s", name)
		}
	}
	for short, name := range dockerShort {
		refused(t, []string{"run", "-" + short, "x"}, "it has no flag -"+short, dockerFlag(newRun(&options{}), name))
	}
}

// Each verb of docker works, or is refused with what to use instead.
func TestDockerVerbs(t *testing.T) {
	root := newRoot(&options{})
	for _, name := range dockerWords(t, "docker-verbs.txt") {
		found, _, err := root.Find([]string{name})
		works, instead := err == nil && found != root, dockerVerbs[name]
		if works == (instead != "") {
			t.Errorf("godwit %s: works: %v, instead: %q", name, works, instead)
		} else if !works {
			refused(t, []string{name}, "is none of its verbs", instead)
		}
	}
}

// dockerTables are those of docs/how-to/docker.md.
func dockerTables(t *testing.T) string {
	run := newRun(&options{}).Flags()
	text := &strings.Builder{}
	fmt.Fprint(text, "| flag of docker run | here |\n|---|---|\n")
	cells := map[string][]string{}
	for _, name := range dockerWords(t, "docker-run-flags.txt") {
		cell := "works"
		if run.Lookup(name) == nil {
			cell = strings.ReplaceAll(dockerRunFlags[name], " %s", "")
		}
		cells[cell] = append(cells[cell], "`--"+name+"`")
	}
	for _, cell := range slices.SortedFunc(maps.Keys(cells), func(a, b string) int {
		return strings.Compare(cells[a][0], cells[b][0])
	}) {
		fmt.Fprintf(text, "| %s | %s |\n", strings.Join(cells[cell], ", "), inCode(cell))
	}
	fmt.Fprint(text, "\n| verb of docker | instead |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(dockerVerbs)) {
		fmt.Fprintf(text, "| `%s` | %s |\n", name, inCode(dockerVerbs[name]))
	}
	return text.String()
}

// inCode shields what Markdown would take for a tag.
func inCode(text string) string {
	return strings.NewReplacer("<", "&lt;", ">", "&gt;", "|", `\|`).Replace(text)
}

// The tables of the page for users of docker are those of the program.
func TestDockerPage(t *testing.T) {
	page := filepath.Join("..", "docs", "how-to", "docker.md")
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- tables -->\n", "<!-- end of tables -->"
	head, rest, ok := strings.Cut(string(data), begin)
	old, tail, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no tables", page)
	}
	want := "\n" + dockerTables(t) + "\n"
	if *updateDocker {
		if err := os.WriteFile(page, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, old); d != "" {
		t.Errorf("%s (-program +page): go test ./cli -run DockerPage -args -update-docker\n%s", page, d)
	}
}

// A file of variables is read as docker reads it; a line that is none is refused by its number.
func TestEnvFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\ufeff# comment\n\nA=1\n  B=two words\nHOME\nC=\n")
	got, err := readEnvFile(file)
	if d := cmp.Diff([]string{"A=1", "B=two words", "HOME", "C="}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, wrong := range []string{"A=1\n=2\n", "A=1\nthis is none\n"} {
		write(wrong)
		var stdout, stderr bytes.Buffer
		if code := Run(t.Context(), []string{"run", "--env-file", file, "x"}, &stdout, &stderr); code != exitOwn ||
			!strings.Contains(stderr.String(), "line 2") {
			t.Errorf("%q: exit code %d, %s", wrong, code, &stderr)
		}
	}
}
