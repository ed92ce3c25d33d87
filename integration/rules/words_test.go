package rules

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	mostWords = 25 // of a sentence
	// mostWordy is how many pages testdata/wordy.txt may list. It only goes down.
	mostWordy = 0
)

var (
	// Words that make a reader read twice, and what to write instead.
	wrongWords = regexp.MustCompile(`(?i)\b(whoever|nobody|behind|ahead of|beside|what goes on being so)\b`)
	code       = regexp.MustCompile("`[^`]*`")
	marks      = regexp.MustCompile(`(?m)^\s*(?:[-*+]|\d+\.|#+|>)\s+|\*\*`)
	tableRule  = regexp.MustCompile(`(?m)^\|[-:| ]+\|$`)
	comment    = regexp.MustCompile(`(?s)<!--.*?-->`)
	written    = regexp.MustCompile(`(?m)^<!-- table \w+ -->\n(?:\|.*\n)+<!-- end \w+ -->$`)
	sentence   = regexp.MustCompile(`[.!?:](?:\s+|$)`)
)

// sentences answers the sentences of a page: paragraphs, items of lists and cells of
// tables, each cut where a sentence ends. A piece of code counts as one word. A table that a
// test writes has the words of the code, and is left out.
func sentences(page string) []string {
	page = written.ReplaceAllString(page, "\n")
	page = comment.ReplaceAllString(fence.ReplaceAllString(page, "\n\n"), "")
	page = pageLink.ReplaceAllString(code.ReplaceAllString(page, "code"), "$1")
	var all []string
	var block []string
	end := func() {
		for _, s := range sentence.Split(strings.Join(block, " "), -1) {
			if s = strings.TrimSpace(s); s != "" {
				all = append(all, s)
			}
		}
		block = nil
	}
	for line := range strings.Lines(page) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || tableRule.MatchString(text):
			end()
		case strings.HasPrefix(text, "|"):
			end()
			for cell := range strings.SplitSeq(strings.Trim(text, "|"), " | ") {
				block = []string{cell}
				end()
			}
		case strings.HasPrefix(text, "#"):
			end()
			block = []string{marks.ReplaceAllString(text, "")}
			end()
		default:
			if marks.MatchString(text) && !strings.HasPrefix(text, "**") {
				end()
			}
			block = append(block, marks.ReplaceAllString(text, ""))
		}
	}
	end()
	return all
}

// wordy answers what is hard to read in a page.
func wordy(page string) []string {
	var all []string
	for _, s := range sentences(page) {
		if n := len(strings.Fields(s)); n > mostWords {
			all = append(all, s)
		} else if wrongWords.MatchString(s) {
			all = append(all, s)
		}
	}
	return all
}

// Pages have short sentences and none of the words above. Pages that do not pass yet stand
// in testdata/wordy.txt; one that passes leaves it.
func TestWordsOfDocs(t *testing.T) {
	files := tracked(t)
	var listed []string
	for line := range strings.Lines(string(files["integration/rules/testdata/wordy.txt"])) {
		listed = append(listed, strings.TrimSpace(line))
	}
	if len(listed) > mostWordy {
		t.Errorf("testdata/wordy.txt has %d pages; it had %d, and may only get shorter", len(listed), mostWordy)
	}
	for name, page := range pages(t) {
		if name == "CHANGELOG.md" {
			continue // what was said of releases stays as it was
		}
		found := wordy(page)
		switch {
		case len(found) == 0 && slices.Contains(listed, name):
			t.Errorf("%s passes: take it out of testdata/wordy.txt", name)
		case len(found) > 0 && !slices.Contains(listed, name):
			t.Errorf("%s: %d sentences are longer than %d words or have a word of %s:\n\t%s",
				name, len(found), mostWords, wrongWords, strings.Join(found, "\n\t"))
		}
	}
	for _, name := range listed {
		if files[name] == nil {
			t.Errorf("testdata/wordy.txt lists %s, which is not there", name)
		}
	}
}

// The check itself finds what it is for.
func TestWordy(t *testing.T) {
	long := strings.Repeat("word ", mostWords)
	for page, want := range map[string]int{
		"A short one. " + long + "\n": 0, long + "more.": 1, "- " + long + "\n- " + long: 0, "It waits behind it.": 1,
		"```\nbehind\n```\n`beside`": 0,
		"| " + long + " | whoever |": 1, "# Ahead of it\n\nx": 1, long + "[two words](x)": 1,
		"<!-- table x -->\n| nobody |\n|---|\n| nobody |\n<!-- end x -->": 0,
		"<!-- table x -->\n| a |\nnobody\n<!-- end x -->":                 1,
	} {
		if got := wordy(page); len(got) != want {
			t.Errorf("%q: %q, want %d", page, got, want)
		}
	}
}
