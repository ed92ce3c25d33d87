package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"godwit.dev/godwit/internal/nearest"
)

// wrongFlag is what is wrong with the flags of a verb.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return misuse(cmd, err.Error())
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	said := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return misuse(cmd, fmt.Sprintf("it has no flag -%s", unknown.GetSpecifiedName()),
			dockerFlag(cmd, unknown.GetSpecifiedName()))
	}
	if instead := dockerFlag(cmd, unknown.GetSpecifiedName()); instead != "" {
		return misuse(cmd, "it has no flag "+said, instead)
	}
	return misuse(cmd, fmt.Sprintf("it has no flag %s", said), nearest.Question(said, known))
}
