package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// shownBy matches a piece of the last column of docs/dev/promises.md: a directory and the
// tests in it or below it.
var shownBy = regexp.MustCompile("([\\w/]+) `((?:Test|Fuzz)\\w+(?: (?:Test|Fuzz)\\w+)*)`")

// tests answers the directories that each test of the repository is in.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, data := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				all[f.Name.Name] = append(all[f.Name.Name], path.Dir(name))
			}
		}
	}
	return all
}

// Each promise of docs/dev/promises.md names a test, and each test that it names exists.
func TestPromisesAreShown(t *testing.T) {
	known := tests(t)
	rows := 0
	for line := range strings.Lines(string(tracked(t)["docs/dev/promises.md"])) {
		promise, shown, found := strings.Cut(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if !found || !strings.HasPrefix(line, "|") || promise == "promise" {
			continue
		}
		rows++
		pieces := shownBy.FindAllStringSubmatch(shown, -1)
		if len(pieces) == 0 {
			t.Errorf("no test is named for: %s", promise)
		}
		for _, piece := range pieces {
			for name := range strings.FieldsSeq(piece[2]) {
				if !slices.ContainsFunc(known[name], func(dir string) bool {
					return dir == piece[1] || strings.HasPrefix(dir, piece[1]+"/")
				}) {
					t.Errorf("%s is not in %s, or below it; it is named for: %s", name, piece[1], promise)
				}
			}
		}
	}
	if rows < 180 {
		t.Errorf("docs/dev/promises.md has %d promises, want 180 or more", rows)
	}
}
