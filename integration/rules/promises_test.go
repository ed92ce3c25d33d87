package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What CI runs has the linters in it. These hold functions under a limit of complexity and
// length in all that is no test. The CLI is built and vetted for macOS.
func TestLintHolds(t *testing.T) {
	files := tracked(t)
	for name, wants := range map[string][]string{
		".ci/run":  {`(?m)^step test-all\b`, `(?m)^\tstep lint \|\| status=1$`, `(?m)^wait "\$beside" \|\| status=1$`},
		"Makefile": {`(?m)^portable = \./cmd/godwit \./api/\.\.\.$`, `(?m)^\ttools/lint\.sh \$\(portable\)$`},
		"tools/lint.sh": {`GOOS=darwin CGO_ENABLED=0 go build .*&& GOOS=darwin CGO_ENABLED=0 go vet`,
			`(?m)^check 'macOS' portable "\$@"$`, `(?m)^check golangci-lint \S+ run \./\.\.\.$`},
		".golangci.yml": {`(?m)^    - cyclop\b`, `(?m)^    - funlen\b`},
	} {
		for _, want := range wants {
			if !regexp.MustCompile(want).Match(files[name]) {
				t.Errorf("%s has no %s", name, want)
			}
		}
	}
	config := string(files[".golangci.yml"])
	for setting, most := range map[string]int{"max-complexity": 20, "lines": 80, "statements": 55} {
		m := regexp.MustCompile(`(?m)^\s+` + setting + `: (\d+)`).FindStringSubmatch(config)
		if m == nil {
			t.Errorf(".golangci.yml does not set %s", setting)
		} else if n, err := strconv.Atoi(m[1]); err != nil || n > most {
			t.Errorf(".golangci.yml: %s is %s, %d is the most", setting, m[1], most)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)- path: (.*)\n\s+linters: \[(.*)\]`).FindAllStringSubmatch(config, -1) {
		if strings.Contains(m[2], "cyclop") && m[1] != `_test\.go` && m[1] != "(vmmtest|qmptest|chtest|enginetest)/" {
			t.Errorf(".golangci.yml: %s has no limit of complexity", m[1])
		}
	}
}

// Which rights a registry must give stands where people look.
func TestRightsAreDocumented(t *testing.T) {
	files := tracked(t)
	page := strings.Join(strings.Fields(string(files["docs/how-to/registries.md"])), " ")
	for _, want := range []string{"**push, pull and delete**", "A role that may only upload is not enough", "| push | ",
		"| pull | ", "| delete | "} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/how-to/registries.md does not say: %s", want)
		}
	}
	if !strings.Contains(string(files["README.md"]), "docs/how-to/registries.md") {
		t.Error("README.md does not lead there")
	}
}

// However a VM is made, one place decides whether that is a restore. An order to restore is a
// type with one writer, and only that writer can put it into a Create.
func TestOneRestoreDecision(t *testing.T) {
	uses := map[string][]string{}
	for name, data := range tracked(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "integration/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok {
					use := x.Name + "." + s.Sel.Name
					uses[use] = append(uses[use], name)
				}
			}
			return true
		})
	}
	for use, want := range map[string][]string{
		"record.Decide":            {"shim/create_vm.go"},
		"record.Order":             {"migrate/tasks/tasks.go"},
		"record.OrderOf":           {"shim/create_options.go"},
		"machinev1.RestoreOptions": {"api/record/order.go"},
		"runcoptions.Options":      {"api/record/order.go", "shim/create_runc.go"}, // the latter refuses others' options
		"protowire.AppendTag":      {"api/record/order.go"},
	} {
		got := slices.Compact(slices.Sorted(slices.Values(uses[use])))
		if !slices.Equal(got, want) {
			t.Errorf("%s is used in %v, want %v", use, got, want)
		}
	}
}
