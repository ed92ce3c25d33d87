package cli

import (
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

// waitForDaemon waits for a daemon that has answered and is started again, which before is called for.
func (o *options) waitForDaemon(cmd *cobra.Command, before func()) moves.Patience {
	return moves.Patience{Met: true, Waits: func(cause error) {
		before()
		o.note(cmd, "waiting for godwitd, and going on then: "+bare(cause))
	}}
}
