package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// integrationSkips are the functions of the integration tests that may call Skip, and why none of their skips meets
// `make integration`: tools/integration.sh fails on a skip.
var integrationSkips = map[string]string{
	"TestSleep":                   "make k8s is no part of make integration",
	"TestRestart":                 "make k8s is no part of make integration",
	"start":                       "make integration installs Chromium",
	"TestRestoredWithFullChannel": "make integration runs QEMU, and Cloud Hypervisor skips",
}

// A test below integration/ that skips itself fails the CI, an hour after it landed. Here it fails at once.
func TestIntegrationSkips(t *testing.T) {
	met := map[string]bool{}
	for name, text := range tracked(t) {
		if !strings.HasPrefix(name, "integration/") || !strings.HasSuffix(name, ".go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && skips(f) {
				met[f.Name.Name] = true
				if integrationSkips[f.Name.Name] == "" {
					t.Errorf("%s: %s calls Skip: let the test run always, or list why make integration meets no skip of it",
						name, f.Name.Name)
				}
			}
		}
	}
	for name := range integrationSkips {
		if !met[name] {
			t.Errorf("%s skips nothing: take it off the list", name)
		}
	}
}

// skips reports whether a function calls a method Skip, Skipf or SkipNow.
func skips(f *ast.FuncDecl) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Skip") {
				found = true
			}
		}
		return true
	})
	return found
}
