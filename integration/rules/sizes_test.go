package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A type that many methods or fields have grown on is several types. These bounds hold for the
// programs' own code, not for tests and not for what is generated.
const (
	mostMethods = 60
	mostFields  = 25
)

// tooLarge names the types that are over a bound, and why that is right.
var tooLarge = map[string]string{}

// sizes counts the methods and the fields of the types that files declare, by name. An embedded
// struct is one field. A method counts for the type of its receiver, whichever file it is in.
func sizes(files []*ast.File) (methods, fields map[string]int) {
	methods, fields = map[string]int{}, map[string]int{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil {
					methods[receiver(n.Recv.List[0].Type)]++
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					for _, field := range s.Fields.List {
						fields[n.Name.Name] += max(1, len(field.Names))
					}
				}
			}
			return true
		})
	}
	return methods, fields
}

// receiver is the name of a receiver's type, without its star and its type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// over lists the types of a package that are over a bound.
func over(pkg string, files []*ast.File) (all []string) {
	methods, fields := sizes(files)
	for name, n := range methods {
		if n > mostMethods {
			all = append(all, fmt.Sprintf("%s.%s has %d methods", pkg, name, n))
		}
	}
	for name, n := range fields {
		if n > mostFields {
			all = append(all, fmt.Sprintf("%s.%s has %d fields", pkg, name, n))
		}
	}
	slices.Sort(all)
	return all
}

// The types of the shim keep to the bounds: what one of them would have too much of is a component
// or an operation of its own.
func TestTypesOfTheShimAreSmall(t *testing.T) {
	named := map[string]bool{}
	for _, p := range packages(t) {
		pkg := strings.TrimPrefix(p.ImportPath, module+"/")
		if pkg != "shim" && !strings.HasPrefix(pkg, "shim/") {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		for _, found := range over(pkg, files) {
			name, _, _ := strings.Cut(found, " ")
			name = name[strings.LastIndexByte(name, '.')+1:]
			if named[name] = true; tooLarge[name] == "" {
				t.Errorf("%s; at most %d methods and %d fields: make a component or an operation of some of them", found,
					mostMethods, mostFields)
			}
		}
	}
	for name := range tooLarge {
		if !named[name] {
			t.Errorf("%s keeps to the bounds: it needs no exception", name)
		}
	}
}

// A type over a bound is found, also where its methods are generic or it embeds others.
func TestSizesAreCounted(t *testing.T) {
	var src strings.Builder
	src.WriteString("package p\ntype big[T any] struct {\n\tembedded\n")
	for i := range mostFields {
		fmt.Fprintf(&src, "\tf%d int\n", i)
	}
	src.WriteString("}\ntype small struct{ a, b int }\n")
	for i := range mostMethods + 1 {
		fmt.Fprintf(&src, "func (b *big[T]) m%d() {}\n", i)
	}
	for i := range mostMethods {
		fmt.Fprintf(&src, "func (s small) m%d() {}\n", i)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src.String(), parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf("p.big has %d fields", mostFields+1), fmt.Sprintf("p.big has %d methods", mostMethods+1)}
	if got := over("p", []*ast.File{f}); !slices.Equal(got, want) {
		t.Errorf("over = %q, want %q", got, want)
	}
}
