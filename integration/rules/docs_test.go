package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fence matches a block of code, which has no prose in it.
var fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")

// pages answers the Markdown files of the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, data := range tracked(t) {
		if strings.HasSuffix(name, ".md") {
			all[name] = string(data)
		}
	}
	if len(all) < 30 {
		t.Fatalf("the repository has %d pages", len(all))
	}
	return all
}

var (
	pageLink    = regexp.MustCompile(`\[([^]]*)\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notInAnchor = regexp.MustCompile(`[^\w\- ]`)
)

// anchors answers the places of a page that a link can name.
func anchors(page string) []string {
	var all []string
	for _, m := range pageHeading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		text := pageLink.ReplaceAllString(m[1], "$1")
		all = append(all, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(text), ""), " ", "-"))
	}
	return all
}

// Each relative link of a page leads to a file that exists, and to a heading in it.
func TestDocLinks(t *testing.T) {
	all := pages(t)
	for name, page := range all {
		for _, m := range pageLink.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			if strings.Contains(m[2], "://") {
				continue
			}
			target := name
			if m[2] != "" {
				target = path.Join(path.Dir(name), m[2])
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link %s: %v", name, m[0], err)
			} else if m[3] != "" && !slices.Contains(anchors(all[target]), m[3]) {
				t.Errorf("%s: link %s: %s has no such heading", name, m[0], target)
			}
		}
	}
}

// declared answers the names that a Go file declares: functions, methods, types, fields,
// constants and variables.
func declared(t *testing.T, name string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				names = append(names, id.Name)
			}
		case *ast.Field:
			for _, id := range n.Names {
				names = append(names, id.Name)
			}
		}
		return true
	})
	return names
}

var (
	// [`Name`](path.go): the file declares Name; of `Type.Name` the last part counts.
	nameLink = regexp.MustCompile("\\[`([\\w.]+)(?:\\(\\))?`\\]\\(([^)#\\s]+\\.go)\\)")
	// `Name` in `path.go` says the same in words.
	nameIn = regexp.MustCompile("`(\\w+)` in `([\\w/]+\\.go)`")
	// `path/file`, also with a list of names: `shim/{machine,handover}.go`.
	filePath = regexp.MustCompile(
		"`((?:api|cli|client|cmd|daemon|docs|internal|guest|" +
			"integration|migrate|network|packaging|shim|snapshot|tools|vmm)/" +
			"[\\w./{},-]+\\.(?:go|md|proto|py|service|sh|toml|txt))`")
)

// expand writes out the one list that a path may have.
func expand(path string) []string {
	head, rest, found := strings.Cut(path, "{")
	list, tail, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return []string{path}
	}
	var all []string
	for item := range strings.SplitSeq(list, ",") {
		all = append(all, head+item+tail)
	}
	return all
}

// Files that a page names exist, and functions and types that it names are in the file
// that it names for them.
func TestDocsNameWhatExists(t *testing.T) {
	type place struct{ page, name, file string }
	var places []place
	for name, page := range pages(t) {
		if name == "CHANGELOG.md" {
			continue // of files as they were
		}
		page = fence.ReplaceAllString(page, "")
		for _, m := range filePath.FindAllStringSubmatch(page, -1) {
			for _, file := range expand(m[1]) {
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s names %s: %v", name, file, err)
				}
			}
		}
		for _, m := range nameIn.FindAllStringSubmatch(page, -1) {
			if strings.Contains(m[2], "/") {
				places = append(places, place{name, m[1], m[2]})
			}
		}
		for _, m := range nameLink.FindAllStringSubmatch(page, -1) {
			places = append(places, place{name, m[1][strings.LastIndex(m[1], ".")+1:], path.Join(path.Dir(name), m[2])})
		}
	}
	names := map[string][]string{}
	for _, p := range places {
		if _, err := os.Stat(filepath.Join(root, p.file)); err != nil {
			continue // told above, or by TestDocLinks
		}
		if names[p.file] == nil {
			names[p.file] = declared(t, p.file)
		}
		if !slices.Contains(names[p.file], p.name) {
			t.Errorf("%s: %s declares no %s", p.page, p.file, p.name)
		}
	}
}

// The glossary stays short: a project with many words of its own is hard to enter.
func TestGlossaryIsShort(t *testing.T) {
	page := pages(t)["docs/dev/glossary.md"]
	if n := len(regexp.MustCompile(`(?m)^\| [^|]+ \| .+ \|$`).FindAllString(page, -1)) - 1; n < 20 || n > 40 {
		t.Errorf("docs/dev/glossary.md has %d words, want 20 to 40", n)
	}
}

// Each record of a decision has its parts, is short, and is in the index.
func TestDecisionRecords(t *testing.T) {
	all := pages(t)
	index := all["docs/dev/adr/README.md"]
	for name, page := range all {
		dir, file := path.Split(name)
		if dir != "docs/dev/adr/" || file == "README.md" {
			continue
		}
		if !regexp.MustCompile(`^\d{4}-[a-z0-9-]+\.md$`).MatchString(file) {
			t.Errorf("%s: want NNNN-name.md", name)
		}
		for _, part := range []string{"status", "date", "context", "decision", "consequences"} {
			if !strings.Contains(strings.ToLower(page), part) {
				t.Errorf("%s has no %s", name, part)
			}
		}
		if n := strings.Count(page, "\n"); n > 40 {
			t.Errorf("%s has %d lines, 40 are the most", name, n)
		}
		if !strings.Contains(index, "]("+file+")") {
			t.Errorf("docs/dev/adr/README.md does not list %s", file)
		}
	}
}
