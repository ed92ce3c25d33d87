package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// node has VMs, and an error for some of them.
type statsNode map[string]error

func (n statsNode) Running(context.Context) ([]*nodev1.VM, error) {
	return []*nodev1.VM{{Namespace: "default", Id: "a"}, {Namespace: "default", Id: "b"}}, nil
}

func (n statsNode) Stats(_ context.Context, vm *nodev1.VM) (*client.Stats, error) {
	return &client.Stats{VM: fullName(vm)}, n[vm.GetId()]
}

// Of the VMs that run, only one that has gone meanwhile is left out. One that did not answer is told: with dashes in
// the table, and by the end of the command.
func TestStatsThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		gone bool
	}{
		"its shim hangs":  {errdefs.ErrUnavailable, false},
		"of another form": {errdefs.ErrNotImplemented, false},
		"removed":         {errdefs.ErrNotFound, true},
		"stopped":         {errdefs.ErrFailedPrecondition, true},
	} {
		for _, format := range []string{"text", "json"} {
			w := &watched{client: statsNode{"b": fmt.Errorf("ask for b: %w", c.err)}, last: map[string]*client.Stats{}}
			rows, left, err := w.look(t.Context())
			if err != nil || len(rows) != 1 {
				t.Fatalf("%s: %v, %v", name, rows, err)
			}
			var out bytes.Buffer
			cmd, opts := &cobra.Command{}, &options{output: format}
			cmd.SetOut(&out)
			err = opts.printStats(cmd, rows, left, screen.ListFlags{})
			if c.gone != (err == nil) || !c.gone && (!strings.Contains(err.Error(), "ask for b") || !isClass(err, c.err)) {
				t.Errorf("%s: %s: %v", name, format, err)
			}
			if told := strings.Contains(out.String(), "default/b"); told != (!c.gone && format == "text") ||
				!strings.Contains(out.String(), "default/a") {
				t.Errorf("%s: %s: %s", name, format, &out)
			}
		}
	}
}

func isClass(err, class error) bool {
	a, _ := classify(err)
	b, _ := classify(class)
	return a == b
}
