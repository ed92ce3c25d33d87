package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// requirementID matches one id, or the first and the last of a range of one family.
var requirementID = regexp.MustCompile(`\b(?:(S[012]-|[PAN]-|H)([0-9]{2})|([IR])([0-9]{1,2}))\b(?: to |\.\.)?`)

// quotedIDs answers the requirements that a text names; "S2-04 to S2-07" names four.
func quotedIDs(text string, known []string) []string {
	var ids []string
	from := "" // the beginning of a range
	for _, found := range requirementID.FindAllString(text, -1) {
		id := strings.TrimSuffix(strings.TrimSuffix(found, " to "), "..")
		if from != "" {
			first, last := slices.Index(known, from), slices.Index(known, id)
			if first >= 0 && last > first {
				ids = append(ids, known[first+1:last]...) // the list is sorted
			}
		}
		ids = append(ids, id)
		from = ""
		if id != found {
			from = id
		}
	}
	return ids
}

// requirements reads the list of ids: each in a line of its own, behind it, if no test
// shows it, why.
func requirements(t *testing.T) (ids []string, reasons map[string]string) {
	t.Helper()
	reasons = map[string]string{}
	for line := range strings.Lines(string(tracked(t)["docs/requirements.txt"])) {
		id, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		ids = append(ids, id)
		if reason != "" {
			reasons[id] = strings.TrimSpace(reason)
		}
	}
	if len(ids) == 0 {
		t.Fatal("docs/requirements.txt lists nothing")
	}
	return ids, reasons
}

// shownBy answers, for each requirement, the tests that name it in their comment or
// their body.
func shownBy(t *testing.T, known []string) map[string][]string {
	t.Helper()
	shown := map[string][]string{}
	for name, data := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name == "TestQuotedIDs" || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			from := f.Pos()
			if f.Doc != nil {
				from = f.Doc.Pos()
			}
			text := string(data[fset.Position(from).Offset:fset.Position(f.End()).Offset])
			for _, id := range quotedIDs(text, known) {
				shown[id] = append(shown[id], name+" "+f.Name.Name)
			}
		}
	}
	return shown
}

// S0-65: a requirement is named by the test that shows it, or docs/requirements.txt says why
// there is none. With -v: which test shows what.
func TestRequirementsAreShown(t *testing.T) {
	ids, reasons := requirements(t)
	shown := shownBy(t, ids)
	for _, id := range ids {
		tests := slices.Compact(slices.Sorted(slices.Values(shown[id])))
		switch {
		case len(tests) == 0 && reasons[id] == "":
			t.Errorf("no test names %s, and docs/requirements.txt does not say why", id)
		case len(tests) > 0 && reasons[id] != "":
			t.Errorf("%v names %s, of which docs/requirements.txt says: %s", tests, id, reasons[id])
		}
		t.Log(id, tests, reasons[id])
	}
}

// What code and tests quote is a requirement.
func TestQuotedRequirementsExist(t *testing.T) {
	ids, _ := requirements(t)
	for name, data := range tracked(t) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		for _, id := range quotedIDs(string(data), nil) {
			if !slices.Contains(ids, id) {
				t.Errorf("%s quotes %s, which is no requirement", name, id)
			}
		}
	}
}

// The reading of ids: ranges are all that lies between, and what only looks like one is none.
func TestQuotedIDs(t *testing.T) {
	known := []string{"H01", "I1", "I2", "I3", "I4", "S2-04", "S2-05", "S2-06", "S2-07"}
	for text, want := range map[string]string{
		"// (S2-04 to S2-06, H01): x": "S2-04 S2-05 S2-06 H01", "I1..I4": "I1 I2 I3 I4", "I1, I2 and R10": "I1 I2 R10",
		"SHA256, EPSON-12, xI1, H1, H011, S3-01, I100": "",
	} {
		if got := strings.Join(quotedIDs(text, known), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
