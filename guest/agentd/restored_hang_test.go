package agentd

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/lean"
)

// Where a call hangs in a container, the host is answered in time what its guest could take.
func TestFilesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContainer("", "", "")
		s := newService(c)
		s.opts.Log = t.Logf
		if err := c.turn.Take(t.Context()); err != nil { // as a call that hangs in the container has it
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the host's
		defer cancel()
		problems := s.renew(ctx, c, []*agentv1.File{{Path: "/etc/resolv.conf"}})
		if ctx.Err() != nil || len(problems) != 1 || !strings.Contains(problems[0], "copy files") {
			t.Errorf("%v: %q", ctx.Err(), problems)
		}
		c.turn.Give()
	})
}
