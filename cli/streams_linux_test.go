package cli

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/internal/ptytest"
)

// Lines of a process that has a terminal end in "\r\n" on this one, from the first byte on, with and without -i.
// Afterwards the terminal is as it was, and what a process without one writes ends as it did before.
func TestLinesEndOnce(t *testing.T) {
	for name, c := range map[string]struct {
		tty, known, interactive bool
		want                    string
	}{
		"-it":         {true, true, true, "first\r\nlater\r\nshell\r\n"},
		"-t":          {true, true, false, "first\r\nlater\r\nshell\r\n"},
		"attached":    {true, false, true, "later\r\nshell\r\n"},
		"no terminal": {false, false, true, "first\r\nlater\r\nshell\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			term := ptytest.Open(t, 80)
			cmd := &cobra.Command{}
			cmd.SetIn(term.TTY)
			cmd.SetOut(term.TTY)
			end := "\n"
			if c.tty {
				end = "\r\n"
			}
			s := streamsOf(cmd, c.interactive, c.known)
			write := func(w io.Writer, text string) {
				t.Helper()
				if _, err := io.WriteString(w, text); err != nil {
					t.Fatal(err)
				}
			}
			if c.known || !c.tty {
				write(s.Stdout, "first"+end)
			}
			if c.tty {
				if err := s.terminal(c.interactive); err != nil {
					t.Fatal(err)
				}
			}
			write(s.Stdout, "later"+end)
			if err := s.restore(); err != nil {
				t.Fatal(err)
			}
			write(term.TTY, "shell\n")
			term.Shown()
			if got := term.Now(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
