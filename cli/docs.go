//go:build docs

package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"godwit.dev/godwit/api/version"
)

func init() { verbs = append(verbs, newDocs) }

// newDocs is in no program that is installed: tools/man.sh builds it for itself. It writes
// the manual pages of the verbs, and those that are written by hand as NAME.SECTION.md.
func newDocs(*options) *cobra.Command {
	return &cobra.Command{
		Use: "docs DIR PAGE..", Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			day, err := built()
			if err != nil {
				return err
			}
			for _, page := range args[1:] {
				if err := byHand(args[0], page, day); err != nil {
					return fmt.Errorf("make manual page of %s: %w", page, err)
				}
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "1", Date: &day, Source: "godwit " + version.Version, Manual: "godwit",
			}, args[0])
		},
	}
}

// built is the day that the pages name: the same tree gives the same pages.
func built() (time.Time, error) {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(epoch, 0).UTC(), nil
}

var (
	link    = regexp.MustCompile(`\[([^]]+)\]\([^)]*\)`)
	title   = regexp.MustCompile(`^# (.*)\n+`)
	heading = regexp.MustCompile(`(?m)^## .*$`)
	rule    = regexp.MustCompile(`(?m)^\| .*\n\|---.*\n`)
	row     = regexp.MustCompile(`(?m)^\| (.*?) \|(?: (.*?))? \| (.*) \|$`)
)

// byHand turns a page of Markdown into one of the manual. Its title, "# what it is", is
// the line of apropos. Links go, for other pages are not in the manual, and tables of key,
// default and meaning become lists, for terminals are narrow.
func byHand(dir, page string, day time.Time) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	name, section, found := strings.Cut(strings.TrimSuffix(filepath.Base(page), ".md"), ".")
	if name == "configuration" { // a page of docs/ that serves as both
		name, section, found = "godwit-config", "5", true
	}
	what := title.FindSubmatch(text)
	if !found || what == nil {
		return fmt.Errorf("want NAME.SECTION.md that begins with a title: %w", errdefs.ErrInvalidArgument)
	}
	text = link.ReplaceAll(text[len(what[0]):], []byte("$1"))
	if !bytes.HasPrefix(text, []byte("## ")) {
		text = append([]byte("## Description\n"), text...)
	}
	text = heading.ReplaceAllFunc(text, func(h []byte) []byte { return bytes.ToUpper(h[1:]) })
	text = row.ReplaceAllFunc(rule.ReplaceAll(text, nil), item)
	head := fmt.Sprintf("%% %s %s %q %q godwit\n\n# NAME\n%s - %s\n\n",
		strings.ToUpper(name), section, day.Format("Jan 2006"), "godwit "+version.Version, name, what[1])
	return os.WriteFile(filepath.Join(dir, name+"."+section), md2man.Render(append([]byte(head), text...)), 0o644)
}

func item(line []byte) []byte {
	m := row.FindSubmatch(line)
	text := fmt.Sprintf("%s\n: %s", m[1], m[3])
	if len(m[2]) > 0 {
		text += fmt.Sprintf(" (default: %s)", m[2])
	}
	return []byte(text + "\n")
}
