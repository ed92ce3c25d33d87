package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"godwit.dev/godwit/internal/ptytest"
)

// On a terminal there is a bar with percent and bytes, and after it how far a move is; nothing of it stays.
func TestBarTellsATransfer(t *testing.T) {
	for _, columns := range []int{1, 60, 200} {
		term := ptytest.Open(t, columns)
		p := newProgress(term.TTY, false)
		p.update(sending(2, 3<<20, 5<<20, 24.4))
		p.finish()
		shown := term.Shown()
		for _, want := range []string{"send pages", "50%  5B/10B", "pass 2, 3MiB left, 5MiB/s dirtied, 24 ms to stand still",
			"[===", "   \r"} {
			if columns == 200 && !strings.Contains(shown, want) {
				t.Errorf("%q does not show %q", shown, want)
			}
		}
		for _, line := range strings.Split(shown, "\r") {
			if utf8.RuneCountInString(line) >= columns && columns > 1 {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
	}
}
