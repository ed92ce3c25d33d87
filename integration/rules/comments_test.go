package rules

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"strings"
	"testing"
)

const mostColumns = 120 // of a line of Go; a tab is one

var (
	// Metaphors for what fence, release, remove and stop, or the terms of the field, say.
	metaphors = regexp.MustCompile(`(?i)\b(bur(y|ies|ied|ying)|mourn\w*|bereave\w*|obituar\w*|disavow\w*|acquit\w*|` +
		`renounc\w*|outliv\w*|farewells?|pulses?|slim(s|med|ming)?|memos?|lulls?|glanc\w*)\b`)
	indented = regexp.MustCompile(`(?m)^[\t+].*$`) // code and drawings in a comment, and markers of generators
)

// goFiles answers the files of Go that people write, by name: none of testdata and none that a tool makes.
func goFiles(t *testing.T) map[string][]byte {
	t.Helper()
	all := tracked(t)
	maps.DeleteFunc(all, func(name string, data []byte) bool {
		return !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata/") ||
			byTool(data)
	})
	if len(all) < 500 {
		t.Fatalf("the repository has only %d files of Go", len(all))
	}
	return all
}

// wordyComments answers what is hard to read in the comments of a file: each word of the lists, each long sentence.
func wordyComments(name string, data []byte) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, group := range file.Comments {
		at := files.Position(group.Pos())
		text := indented.ReplaceAllString(group.Text(), "")
		for _, list := range []*regexp.Regexp{wrongWords, metaphors} {
			for _, word := range list.FindAllString(text, -1) {
				all = append(all, fmt.Sprintf("%s:%d: says %q", name, at.Line, strings.ToLower(word)))
			}
		}
		for _, s := range sentences(text) {
			if n := len(strings.Fields(s)); n > mostWords {
				all = append(all, fmt.Sprintf("%s:%d: %d words, %d are the most: %s", name, at.Line, n, mostWords, s))
			}
		}
	}
	return all, nil
}

// longLines answers the lines of a file that have too many columns.
func longLines(name string, data []byte) ([]string, error) {
	var all []string
	for i, line := range bytes.Split(data, []byte("\n")) {
		// A marker of a generator is one line.
		if len(line) > mostColumns && !bytes.HasPrefix(bytes.TrimLeft(line, "\t"), []byte("// +")) {
			all = append(all, fmt.Sprintf("%s:%d: %d columns, %d are the most", name, i+1, len(line), mostColumns))
		}
	}
	return all, nil
}

// Comments have short sentences and none of the words above, but for what the list still allows.
func TestWordsOfComments(t *testing.T) { checkPackages(t, "wordy-packages.txt", wordyComments) }

// A line of Go fits a window, but for what the list still allows.
func TestColumnsOfGo(t *testing.T) { checkPackages(t, "long-packages.txt", longLines) }
