package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/internal/visible"
)

// format is the value of --output.
func (o *options) format() screen.Format { return screen.Format(o.output) }

// machine reports whether a program reads the result.
func (o *options) machine() bool { return o.format().Machine() }

// print writes what a verb has done or found.
func (o *options) print(cmd *cobra.Command, r screen.Result) error {
	return r.Print(cmd.OutOrStdout(), o.format())
}

// list writes what a verb lists.
func (o *options) list(cmd *cobra.Command, l screen.List, f screen.ListFlags) error {
	return l.Print(cmd.OutOrStdout(), o.format(), f)
}

// said is a result in one sentence.
func said(format string, args ...any) func(io.Writer) error {
	return func(w io.Writer) error { return tell(w, format+"\n", args...) }
}

// tell prints what stands in lines. Texts among args are of nodes, guests or registries: none begins a line of its own,
// as that would look like one of ours.
func tell(w io.Writer, format string, args ...any) error {
	inLine := make([]any, len(args))
	for i, arg := range args {
		inLine[i] = arg
		switch text := arg.(type) {
		case string:
			inLine[i] = line(text)
		case error:
			inLine[i] = line(text.Error())
		}
	}
	_, err := fmt.Fprintf(w, format, inLine...)
	return err
}

// line is a text in one line. What errors are joined by becomes what is between sentences.
func line(text string) string { return visible.Line(strings.ReplaceAll(text, "\n", "; ")) }

// fullName is how a VM is named in every namespace.
func fullName(vm *nodev1.VM) string { return vm.GetNamespace() + "/" + vm.GetId() }

// shownDigits of a digest are in tables.
const shownDigits = 12

// short is how docker shows an id: 12 digits. They name it, unless another begins with them.
func short(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), shownDigits)]
}

// lower turns PHASE_SUCCEEDED into succeeded.
func lower(enum, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(enum, prefix), "_", " "))
}

// saidLines is a result of several lines.
func saidLines(lines []string) func(io.Writer) error {
	return func(w io.Writer) error { return screen.Lines(w, lines) }
}

// table reports whether a list is shown as one: people read it, and what stands below it.
func (o *options) table(f screen.ListFlags) bool {
	return (o.format() == screen.Text || o.format() == screen.Wide) && !f.Quiet && f.Format == ""
}
