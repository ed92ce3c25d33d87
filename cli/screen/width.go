package screen

import (
	"io"
	"os"
	"strconv"

	"github.com/mattn/go-isatty"
	"golang.org/x/term"

	"godwit.dev/godwit/internal/visible"
)

// defaultWidth is that of what is no terminal, and of a terminal that does not say.
const defaultWidth = 100

// Width is how many columns the terminal under w has. The variable COLUMNS comes first: who sets it knows better.
func Width(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := terminal(w); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return defaultWidth
}

// Terminal reports whether somebody looks at w.
func Terminal(w io.Writer) bool {
	_, ok := terminal(w)
	return ok
}

func terminal(w io.Writer) (*os.File, bool) {
	f, ok := visible.Under(w).(*os.File)
	return f, ok && isatty.IsTerminal(f.Fd())
}

// Colours reports whether w shows colours: a terminal that is not told otherwise (https://no-color.org).
func Colours(w io.Writer) bool {
	return Terminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
