package rules

import (
	"reflect"
	"strings"
	"testing"
)

// The check of comments finds each word of the lists and each long sentence, in every comment, and nothing in code.
func TestWordyComments(t *testing.T) {
	long := strings.Repeat("word ", mostWords)
	for code, want := range map[string]int{
		"package p\n": 0, "// Package p. " + long + ".\npackage p\n": 0, "// Package p. " + long + "more.\npackage p\n": 1,
		"package p\n\n// " + long + "\n// more.\nvar v int\n":                                  1,
		"package p\n\nfunc f() {\n\t// " + long + "more.\n}\n":                                 1,
		"package p\n\nvar v int // It waits behind it.\n":                                      1,
		"package p\n\n// Nobody is ahead of it,\n// or beside.\nfunc f() {}\n":                 3,
		"package p\n\n// f is buried, and outlived\n// by whoever.\nfunc f() {}\n":             3,
		"package p\n\nvar behind = \"nobody\"\n":                                               0,
		"package p\n\n// f:\n//\n//\tbehind := `" + long + "more`\nfunc f() {}\n":              0,
		"package p\n\n/* It glances. */\nvar v int\n\n// The memory is slime-free.\nvar w int": 1,
	} {
		if got, err := wordyComments("p.go", []byte(code)); err != nil || len(got) != want {
			t.Errorf("%q: %q, %v, want %d", code, got, err, want)
		}
	}
	if got, err := wordyComments("p.go", []byte("package")); err == nil {
		t.Errorf("a file that is no Go: %q, want an error", got)
	}
}

// The check of columns finds a line with one column too many, and tells which.
func TestLongLines(t *testing.T) {
	fits := "// " + strings.Repeat("x", mostColumns-3)
	got, err := longLines("p.go", []byte("package p\n"+fits+"\n"+fits+"x\n"))
	if want := []string{"p.go:3: 121 columns, 120 are the most"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// A package with more than its count is wrong, and so are one with less and one that the list lacks.
// The right counts are never above those of the list.
func TestCompareWithList(t *testing.T) {
	listed, err := counts([]byte("clean 1\nless 3\nmore 1\nsame 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	wrong, right := compare(map[string][]string{
		"less": {"a", "b"}, "more": {"a", "b"}, "same": {"a"}, "unlisted": {"a"}, "whole": nil,
	}, listed)
	if want := map[string]int{"less": 2, "more": 1, "same": 1}; !reflect.DeepEqual(right, want) {
		t.Errorf("right: %v, want %v", right, want)
	}
	for i, want := range []string{"clean has 0", "less has 2", "more has 2", "unlisted has 1"} {
		if len(wrong) != 4 || !strings.HasPrefix(wrong[i], want) {
			t.Fatalf("wrong: %q", wrong)
		}
	}
	for _, bad := range []string{"a\n", "a x\n", "a 0\n", "a -1\n", "a 1\na 2\n", "a 1 b\n"} {
		if got, err := counts([]byte(bad)); err == nil {
			t.Errorf("%q: %v, want an error", bad, got)
		}
	}
}
