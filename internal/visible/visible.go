// Package visible makes foreign text safe to print: what a node, a guest or a registry says may move
// a terminal's cursor, hide a line or turn its reading direction.
package visible

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is s with each control character, except newline and tab, as an escape: \x1b. Those that JSON
// leaves as they are get an escape that JSON has: \u009b.
func Text(s string) string {
	if strings.IndexFunc(s, hidden) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !hidden(r):
			b.WriteRune(r)
		case r < ' ':
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Line is Text in one line, for a cell of a table.
func Line(s string) string { return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Text(s)) }

// hidden are the control characters of ASCII and Latin-1, and those that change how text around them is read.
func hidden(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' ||
		r == '\u2029'
}

// Cut is the begin of s, at most so many bytes, whole characters.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// Writer writes to w as Text has it. What is written at once is whole characters, as programs that
// print lines do.
func Writer(w io.Writer) io.Writer { return writer{w} }

// Under is what a Writer writes to, for who steers a terminal and cleans what it shows itself.
func Under(w io.Writer) io.Writer {
	if v, ok := w.(writer); ok {
		return v.w
	}
	return w
}

type writer struct{ w io.Writer }

// Write implements io.Writer.
func (v writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(v.w, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
