package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// named are the files whose durations have a name elsewhere.
var named = map[string]string{
	"api/config/default.go": "the defaults of settings, each of which docs/reference/configuration.md has by its key",
}

// units are the durations of package time.
var units = []string{"Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// What a program waits for, and how often it looks, has a name or is a setting: in a function
// there is no number of seconds.
func TestIntervalsAreNamed(t *testing.T) {
	for name, data := range tracked(t) {
		top, _, _ := strings.Cut(name, "/")
		own := slices.Contains([]string{"api", "cli", "client", "cmd", "daemon", "guest", "migrate", "network", "shim",
			"snapshot", "vmm"},
			top)
		if !own || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") ||
			strings.HasSuffix(filepath.Dir(name), "test") || named[name] != "" {
			continue
		}
		for _, at := range numbers(t, name, data) {
			t.Errorf("%s: a duration without a name: make it a constant that says what for", at)
		}
	}
}

// numbers are the places of durations that stand in functions.
func numbers(t *testing.T, name string, data []byte) (all []string) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, data, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if g, ok := n.(*ast.GenDecl); ok && g.Tok == token.CONST || measures(n) {
				return false
			}
			if e, ok := n.(ast.Expr); ok && unit(e) {
				all = append(all, files.Position(e.Pos()).String())
			}
			return true
		})
	}
	return all
}

// measures tells a unit that is only one of measure: a conversion of what is counted in it, and the
// rounding of what is shown.
func measures(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		number := func(e ast.Expr) bool { _, ok := e.(*ast.BasicLit); return ok }
		return (n.Op == token.QUO || n.Op == token.REM) && unit(n.Y) || n.Op == token.MUL &&
			(unit(n.Y) && !number(n.X) || unit(n.X) && !number(n.Y))
	case *ast.CallExpr:
		if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "float64" && len(n.Args) == 1 {
			return unit(n.Args[0])
		}
		fn, ok := n.Fun.(*ast.SelectorExpr)
		return ok && fn.Sel.Name == "Round"
	}
	return false
}

func unit(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := s.X.(*ast.Ident)
	return ok && of.Name == "time" && slices.Contains(units, s.Sel.Name)
}

// The rule sees what it is to see, and no more.
func TestIntervalsAreSeen(t *testing.T) {
	for body, want := range map[string]int{
		"time.Sleep(5 * time.Second)":                                               1,
		"time.Sleep(time.Second)":                                                   1,
		"sleep(ctx, readWait+5*time.Second)":                                        1,
		"pause := time.Minute; _ = min(2*pause, time.Hour)":                         2,
		"return 2 * time.Second":                                                    1,
		"const wait = time.Second; time.Sleep(wait)":                                0,
		"time.Sleep(time.Duration(ms) * time.Millisecond)":                          0,
		"return float64(d) / float64(time.Millisecond)":                             0,
		"fmt.Println(d/time.Millisecond, d%time.Millisecond, d.Round(time.Second))": 0,
		"s := &http.Server{ReadHeaderTimeout: 5 * time.Second}":                     1,
		"if v < time.Second || v > 24*time.Hour { return }":                         2,
		"go func() { for range time.Tick(time.Second) { } }()":                      1,
	} {
		if got := numbers(t, "x.go", []byte("package x\nfunc f() {\n"+body+"\n}\n")); len(got) != want {
			t.Errorf("%s: %q, want %d", body, got, want)
		}
	}
}
