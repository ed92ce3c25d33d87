package moves

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"godwit.dev/godwit/migrate/engine"
)

// untold are events that are no move's.
var untold = []engine.Type{engine.OwnershipEnded, engine.Superseded, engine.Foreign, engine.Reclaimed,
	engine.DeletionWaits,
	engine.DeletionFails, engine.DeletionOff}

// Each event of the engine is told to who watches moves, or is none of a move: a new one that is missing in the
// table would be dropped without a word.
func TestTypesAreTold(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../engine/events.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Type" || len(spec.Values) != 1 {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		n++
		if kind := engine.Type(text); (types[kind] != "") == slices.Contains(untold, kind) {
			t.Errorf("%s: told as %q, untold %v", kind, types[kind], slices.Contains(untold, kind))
		}
		return true
	})
	if n != len(types)+len(untold) {
		t.Errorf("%d events in the engine, %d here", n, len(types)+len(untold))
	}
}
