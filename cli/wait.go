package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/cli/screen"
)

// note says on standard error, in addition to the results, what is no error: a line, or a document.
func (o *options) note(cmd *cobra.Command, text string) {
	if o.machine() {
		_ = screen.Each(cmd.ErrOrStderr(), o.format(), map[string]string{"note": text})
		return
	}
	_ = tell(cmd.ErrOrStderr(), "godwit: %s\n", text)
}

// notes makes a note of each line that is written to it.
type notes struct {
	opts *options
	cmd  *cobra.Command
}

// Write implements io.Writer. What is written at once is whole lines.
func (n *notes) Write(p []byte) (int, error) {
	for l := range strings.Lines(string(p)) {
		n.opts.note(n.cmd, strings.TrimSuffix(l, "\n"))
	}
	return len(p), nil
}

// waitForDaemon waits for a daemon that has answered and is started again, which before is called for.
func (o *options) waitForDaemon(cmd *cobra.Command, before func()) moves.Patience {
	return moves.Patience{Met: true, Waits: func(cause error) {
		before()
		o.note(cmd, "waiting for godwitd, and going on then: "+bare(cause))
	}}
}
