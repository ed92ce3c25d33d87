package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

// copyFlags are those of godwit cp.
type copyFlags struct {
	options client.CopyOptions
	quiet   bool
}

func newCp(opts *options) *cobra.Command {
	f := &copyFlags{}
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files and directories out of a running VM, or into it",
		Long: "Copy a file or a directory between this host and a running VM, by docker's rules. The VM goes on.\n" +
			"One of SOURCE and DESTINATION is VM:PATH, the other one a path of this host.\n" +
			"A directory lands in a directory that is there; with /. at the source's end its content does.\n" +
			"- is a tar stream: of the path on stdout, or from stdin into a directory of the VM.\n" +
			"A local path with a colon is written with ./ or / at its beginning.\n" +
			"The copy needs the agent: a VM that boots the system on its disk has none.",
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, opts, args[0], args[1]) },
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.options.Owners, "archive", "a", false, "keep owners, and setuid and setgid bits")
	flags.BoolVarP(&f.options.FollowLink, "follow-link", "L", false, "of a symbolic link, copy its target")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not say what was copied")
	return cmd
}

// vmPath splits VM:PATH; vm is empty for a path of this host.
func vmPath(arg string) (vm, path string) {
	before, after, found := strings.Cut(arg, ":")
	if !found || before == "" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return "", arg
	}
	return before, after
}

func (f *copyFlags) run(cmd *cobra.Command, opts *options, src, dst string) error {
	fromVM, from := vmPath(src)
	toVM, to := vmPath(dst)
	switch {
	case fromVM != "" && toVM != "":
		return fmt.Errorf("cp copies between this host and one VM. "+
			"Between two: godwit cp %s - | godwit cp - %s: %w", src, dst, errdefs.ErrInvalidArgument)
	case fromVM == "" && toVM == "":
		return fmt.Errorf("neither %q nor %q names a VM. Write VM:PATH for one of them: %w", src, dst,
			errdefs.ErrInvalidArgument)
	case from == "" || to == "":
		return fmt.Errorf("a path is empty. Write VM:PATH, as in web:/etc: %w", errdefs.ErrInvalidArgument)
	}
	ctx := cmd.Context()
	c := opts.client()
	defer c.Close()
	vm, err := c.Resolve(ctx, fromVM+toVM)
	if err != nil {
		return err
	}
	var done client.Copied
	switch {
	case fromVM != "" && to == "-":
		if screen.Terminal(opts.rawOut) {
			return fmt.Errorf("a tar stream is not for a terminal. "+
				"Send it to a file or a program: godwit cp %s - > FILE: %w", src, errdefs.ErrInvalidArgument)
		}
		done, err = c.Stream(ctx, vm, from, opts.rawOut, f.options)
	case fromVM != "":
		done, err = c.CopyFrom(ctx, vm, from, to, f.options)
	case from == "-":
		done, err = c.Unpack(ctx, vm, to, "", f.options.Owners, interruptible(ctx, opts.stdin))
	default:
		done, err = c.CopyTo(ctx, vm, from, to, f.options)
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", src, dst, err)
	}
	return f.say(cmd, opts, dst, done)
}

func (f *copyFlags) say(cmd *cobra.Command, opts *options, dst string, done client.Copied) error {
	if done.Skipped > 0 {
		opts.note(cmd, fmt.Sprintf("skipped, as devices, pipes, sockets and kernel file systems are not copied: %d (%s)",
			done.Skipped, strings.Join(done.Names, ", ")))
	}
	switch {
	case f.quiet || dst == "-":
		return nil
	case opts.machine():
		return screen.Document(cmd.OutOrStdout(), opts.format(), done)
	}
	files := "1 file"
	if done.Files != 1 {
		files = fmt.Sprintf("%d files", done.Files)
	}
	if done.Bytes > 0 {
		files += ", " + screen.Bytes(uint64(done.Bytes)) + ","
	}
	return tell(cmd.ErrOrStderr(), "Copied %s to %s\n", files, dst)
}

// interruptible gives up a Read of a stream that brings nothing, once ctx has ended.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		_ = pw.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = pw.CloseWithError(ctx.Err()) })
	return pr
}
