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
	// `Name` and `Other` in `path` say the same in words. path is a file, a list of files, or a package.
	nameIn = regexp.MustCompile("((?:`\\w+`(?:, | and |, and ))*`\\w+`) in `((?:\\w+/)+[\\w.{},-]+|\\w+\\.go)`")
	quoted = regexp.MustCompile("`(\\w+)`")
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
		for _, m := range nameIn.FindAllStringSubmatchIndex(page, -1) {
			names, file := page[m[2]:m[3]], page[m[4]:m[5]]
			if !strings.Contains(file, "/") {
				file = path.Join(dirBefore(page[:m[0]]), file)
			}
			for _, n := range quoted.FindAllStringSubmatch(names, -1) {
				places = append(places, place{name, n[1], file})
			}
		}
		for _, m := range nameLink.FindAllStringSubmatch(page, -1) {
			places = append(places, place{name, m[1][strings.LastIndex(m[1], ".")+1:], path.Join(path.Dir(name), m[2])})
		}
	}
	names := map[string][]string{}
	for _, p := range places {
		if names[p.file] == nil {
			for _, file := range filesAt(p.file) {
				names[p.file] = append(names[p.file], declared(t, file)...)
			}
		}
		// Without a Go file it is another language's, or the file is missing, which is told above or by TestDocLinks.
		if len(names[p.file]) > 0 && !slices.Contains(names[p.file], p.name) {
			t.Errorf("%s: %s declares no %s", p.page, p.file, p.name)
		}
	}
}

// dirBefore answers the directory of the last file that a line names before its end: a file without one is there too.
func dirBefore(text string) string {
	line := text[strings.LastIndex(text, "\n")+1:]
	all := filePath.FindAllStringSubmatch(line, -1)
	if len(all) == 0 {
		return ""
	}
	return path.Dir(all[len(all)-1][1])
}

// filesAt answers the Go files that exist of a file, of a list of files, or of a package.
func filesAt(path string) []string {
	var all []string
	for _, file := range expand(path) {
		if !strings.HasSuffix(file, ".go") {
			file += "/*.go"
		}
		found, _ := filepath.Glob(filepath.Join(root, file))
		for _, f := range found {
			if rel, err := filepath.Rel(root, f); err == nil {
				all = append(all, filepath.ToSlash(rel))
			}
		}
	}
	return all
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
