package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// eachVerb calls do for every command below cmd, but cobra's own help.
func eachVerb(cmd *cobra.Command, do func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		if sub.Name() != "help" {
			do(sub)
			eachVerb(sub, do)
		}
	}
}

// refused runs a command line that is wrong, and wants exit code 2 and each of the words.
func refused(t *testing.T, words []string, says ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := Run(t.Context(), append([]string{"--socket", "/nowhere"}, words...), &stdout, &stderr)
	for _, want := range append(says, "More: godwit", "--help.") {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("godwit %q: stderr %q does not say %q", words, &stderr, want)
		}
	}
	want := 2
	if words[0] == "run" || words[0] == "exec" {
		want = exitOwn
	}
	if code != want || stdout.Len() > 0 {
		t.Errorf("godwit %q: exit code %d; stdout %q, stderr %q", words, code, &stdout, &stderr)
	}
}

// right are values for all arguments of a verb that its own check takes.
func right(want []argument) (args []string) {
	for _, a := range want {
		switch a.name {
		case "DIGEST", "FROM", "TO":
			args = append(args, someDigest)
		default:
			args = append(args, "x")
		}
	}
	return args
}

// Every verb, also one that is added later, names what is missing, empty or too many, the line of usage and the way to
// more. All arguments are known by what they are. So it is with a flag that is wrong, and with a verb that there is
// not.
func TestUsage(t *testing.T) {
	used := map[string]bool{}
	eachVerb(newRoot(&options{}), func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		want := argumentsOf(cmd.Use)
		refused(t, append(slices.Clone(path), "--nope"), cmd.CommandPath()+":", "it has no flag --nope")
		if cmd.HasSubCommands() && len(want) == 0 {
			refused(t, path, cmd.CommandPath()+":", "name one of")
			refused(t, append(slices.Clone(path), "nope"), cmd.CommandPath()+":", `"nope"`)
			return
		}
		open := false
		for i, a := range want {
			used[a.name], open = true, open || a.many
			if arguments[a.name] == "" && !cmd.Hidden {
				t.Errorf("%s: what %s is stands in no table", cmd.Use, a.name)
			}
			if a.many {
				continue
			}
			args := right(want)
			if !a.optional {
				refused(t, append(slices.Clone(path), args[:i]...), cmd.CommandPath()+": "+a.name+" is missing", arguments[a.name],
					cmd.UseLine())
			}
			args[i] = ""
			refused(t, append(slices.Clone(path), args...), cmd.CommandPath()+": "+a.name+" is empty", arguments[a.name],
				cmd.UseLine())
		}
		if !open {
			refused(t, append(slices.Clone(path), append(right(want), "extra")...),
				cmd.CommandPath()+`: "extra" is one argument too many`, cmd.UseLine())
		}
	})
	for name := range arguments {
		if !used[name] {
			t.Errorf("no verb takes %s", name)
		}
	}
	refused(t, []string{"nope"}, `godwit: "nope" is none of its verbs. Did you mean node?`)
	refused(t, []string{"frobnicate"}, `"frobnicate" is none of its verbs. Usage`)
	refused(t, []string{"snapshot", "frobnicate"}, "Name one of", "verify")
	refused(t, []string{"ps", "--output"}, "godwit ps: flag needs an argument: --output")
	refused(t, []string{"golden"}, "or one of its verbs (ls, rm)")
}
