package visible

import (
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

// Nothing that steers a terminal or turns text is left, and all else stays as it is.
func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"web": "web", "a\nb\tc": "a\nb\tc", "Z\u00fcrich": "Z\u00fcrich", "a\x1b[2Jb": `a\x1b[2Jb`,
		"a\x00b\rc\x7f": `a\x00b\x0dc\u007f`, "a\u009bb": `a\u009bb`,
		"a\u202eb": `a\u202eb`, "a\xffb": `a\xffb`, "\ufffd": "\ufffd", "": "",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A cell of a table is one line.
func TestLine(t *testing.T) {
	if got := Line("a\nb\tc\x1b"); got != `a\nb\tc\x1b` {
		t.Errorf("%q", got)
	}
}

// A cut text is whole characters, and no longer than asked.
func TestCut(t *testing.T) {
	for n := range 12 {
		if got := Cut("a\u00fcb\u20acc", n); len(got) > n || !utf8.ValidString(got) ||
			!strings.HasPrefix("a\u00fcb\u20acc", got) {
			t.Errorf("at %d: %q", n, got)
		}
	}
}

// A writer lets no control character through.
func TestWriter(t *testing.T) {
	var b strings.Builder
	if n, err := Writer(&b).Write([]byte("x\x1b]0;y\a\n")); n != 8 || err != nil || b.String() != `x\x1b]0;y\x07`+"\n" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
	if Under(Writer(&b)) != io.Writer(&b) || Under(&b) != io.Writer(&b) {
		t.Error("what is under it is another")
	}
}
