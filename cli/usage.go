package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/client"
	"godwit.dev/godwit/internal/nearest"
)

// arguments are what verbs take, as their lines of usage call it, and where each comes from.
var arguments = map[string]string{
	"VM":           "the VM's name, or its ID or the beginning of it, or NAMESPACE/ID (godwit ps lists them)",
	"NEW":          "the new name",
	"KIND":         "createRuntime or postStop",
	"NODE":         "the name of a node (godwit nodes lists them)",
	"OPERATION":    "the id of an operation (godwit migrations -a lists moves)",
	"DIGEST":       "the digest of a snapshot, its first digits, or its name (godwit snapshot ls lists them)",
	"FROM":         "the digest of the older snapshot (godwit snapshot ls lists them)",
	"TO":           "the other snapshot's digest, or where a copy goes: a repository, or oci-layout:DIRECTORY",
	"IMAGE":        "an image, such as alpine or registry.example/app:1 (godwit images lists those that are here)",
	"IMAGE|DIGEST": "an image, its digest, or that of a golden snapshot (godwit template ls lists them)",
	"TEMPLATE":     "the name of a template, or an image or its digest (godwit template ls lists them)",
	"COMMAND":      "what runs in the container instead of the image's own command",
	"ARG":          "an argument of it",
	"NAME":         "the name of the node that is to join",
	"SOURCE":       "VM:PATH, a path of this host, or - for a tar stream on stdin",
	"DESTINATION":  "VM:PATH, a path of this host, or - for a tar stream on stdout",
	"TOKEN":        "what godwit node token has printed on the node with the CA",
}

// argument is one that a verb takes.
type argument struct {
	name     string
	optional bool
	many     bool
}

// argumentsOf reads the line of usage: NAME, [NAME], [NAME...]; flags in it are reminders.
func argumentsOf(use string) (all []argument) {
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		all = append(all, argument{strings.Trim(word, "[]."), strings.HasPrefix(word, "["), strings.Contains(word, "..")})
	}
	return all
}

// strict has each verb below cmd take the arguments that its line of usage names, no fewer and no more: what is wrong
// is named, with the line. What a verb checks by itself comes after that.
func strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
	if !cmd.HasParent() || cmd.HasSubCommands() && len(argumentsOf(cmd.Use)) == 0 {
		cmd.Args, cmd.RunE = cobra.ArbitraryArgs, chosen(cmd)
		return
	}
	own := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if wrong := misfit(argumentsOf(cmd.Use), args); wrong != "" {
			return misuse(cmd, wrong)
		}
		if own == nil {
			return nil
		}
		return own(cmd, args)
	}
}

// misfit says which of the arguments is missing, empty or one too many.
func misfit(want []argument, got []string) string {
	for i, a := range want {
		switch {
		case a.many:
			return ""
		case i >= len(got) && a.optional:
			return ""
		case i >= len(got):
			return fmt.Sprintf("%s is missing: %s", a.name, arguments[a.name])
		case got[i] == "":
			return fmt.Sprintf("%s is empty: %s", a.name, arguments[a.name])
		}
	}
	if len(got) > len(want) {
		return fmt.Sprintf("%q is one argument too many", got[len(want)])
	}
	return ""
}

// chosen is the body of a command that holds others: with a word that is none of them it is refused,
// and so it is alone, unless it is the root.
func chosen(cmd *cobra.Command) func(*cobra.Command, []string) error {
	names := namesBelow(cmd)
	return func(cmd *cobra.Command, args []string) error {
		if !cmd.HasParent() && len(args) == 0 {
			return cmd.Help()
		}
		if len(args) == 0 {
			return misuse(cmd, "name one of "+names)
		}
		advice := nearest.Question(args[0], strings.Split(names, ", "))
		if instead := dockerVerbs[args[0]]; instead != "" && !cmd.HasParent() {
			advice = instead
		}
		if advice == "" && cmd.HasParent() {
			advice = sentence("Name one of " + names)
		}
		return misuse(cmd, fmt.Sprintf("%q is none of its verbs", args[0]), advice)
	}
}

func namesBelow(cmd *cobra.Command) string {
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// misuse is the one shape of what is wrong with a command line. advice is what may have been meant.
func misuse(cmd *cobra.Command, wrong string, advice ...string) error {
	line := cmd.UseLine()
	if names := namesBelow(cmd); names != "" && len(argumentsOf(cmd.Use)) > 0 {
		line += ", or one of its verbs (" + names + ")"
	}
	return &client.Problem{What: sentence(cmd.CommandPath() + ": " + wrong), Why: strings.Join(advice, " "),
		Remedy: fmt.Sprintf("Usage: %s. More: %s --help.", line, cmd.CommandPath()), Cause: errdefs.ErrInvalidArgument}
}
