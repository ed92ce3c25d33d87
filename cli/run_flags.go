package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"godwit.dev/godwit/client"
)

// vmFlags are those of run and create, by docker's names.
type vmFlags struct {
	client.VMOptions
	memory, entrypoint string
	labels, notes      []string
	envFiles           []string
	stopTimeout        int
	interactive, quiet bool
}

func (f *vmFlags) add(flags *pflag.FlagSet) {
	flags.SetInterspersed(false) // what stands after the image is the command's
	flags.StringVar(&f.Name, "name", "", "name and id of the VM (default: made of the image's)")
	flags.StringArrayVarP(&f.Env, "env", "e", nil, "KEY=VALUE, or KEY as in this environment")
	flags.StringArrayVar(&f.envFiles, "env-file", nil, "file with KEY=VALUE, a line each; -e comes after it")
	flags.StringArrayVarP(&f.Ports, "publish", "p", nil, "[HOSTIP:][HOSTPORT:]PORT[/tcp|udp|sctp]")
	flags.StringArrayVarP(&f.Volumes, "volume", "v", nil,
		"HOST:PATH:ro or HOST:PATH:copy: a copy of the host's file or directory; what the VM writes stays in it")
	flags.StringVarP(&f.memory, "memory", "m", "", "that the processes may use, such as 512m")
	flags.Float64Var(&f.CPUs, "cpus", 0, "how many of the host's CPUs it may use, such as 1.5")
	flags.StringVar(&f.Network, "network", "", "bridge: as CNI is configured (the default, if it is); none")
	flags.StringVarP(&f.User, "user", "u", "", "USER[:GROUP] of the process")
	flags.StringVarP(&f.WorkDir, "workdir", "w", "", "working directory of the process")
	flags.StringVar(&f.Hostname, "hostname", "", "default: the name")
	flags.StringVar(&f.entrypoint, "entrypoint", "", "program instead of the image's entrypoint; \"\": none")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "KEY=VALUE of the container")
	flags.StringArrayVar(&f.notes, "annotation", nil, "KEY=VALUE, such as godwit.dev/memory=1GiB")
	flags.BoolVar(&f.ReadOnly, "read-only", false, "the root file system cannot be written")
	flags.BoolVarP(&f.Terminal, "tty", "t", false, "give the process a terminal")
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	flags.StringVar(&f.StopSignal, "stop-signal", "", "what godwit stop sends (default: as the image says, else SIGTERM)")
	flags.IntVar(&f.stopTimeout, "stop-timeout", -1, "seconds that godwit stop waits before it kills (default: 10)")
	flags.StringVar(&f.Snapshotter, "snapshotter", "", "of containerd (default: as the namespace says)")
	flags.StringVar(&f.Pull, "pull", "missing", "missing, always or never")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "show no progress of a pull")
	flags.BoolVar(&f.Insecure, "insecure-registry", false, "take a registry without TLS, or with a certificate of its own")
}

// options reads them, and the arguments.
func (f *vmFlags) options(cmd *cobra.Command, opts *options, args []string) (_ client.VMOptions, err error) {
	o := f.VMOptions
	o.Image, o.Command = args[0], args[1:]
	if o.Memory, err = parseMemory(f.memory); err != nil {
		return o, err
	}
	if cmd.Flags().Changed("entrypoint") {
		o.Entrypoint = []string{f.entrypoint}
	}
	if o.Labels, err = pairs("--label", f.labels); err != nil {
		return o, err
	}
	if o.Annotation, err = pairs("--annotation", f.notes); err != nil {
		return o, err
	}
	var files []string
	for _, file := range f.envFiles {
		env, err := readEnvFile(file)
		if err != nil {
			return o, err
		}
		files = append(files, env...)
	}
	o.Env = append(files, o.Env...)
	if cmd.Flags().Changed("stop-timeout") {
		if f.stopTimeout < 0 {
			return o, fmt.Errorf("--stop-timeout %d: 0 or more: %w", f.stopTimeout, errdefs.ErrInvalidArgument)
		}
		after := time.Duration(f.stopTimeout) * time.Second
		o.StopTimeout = &after
	}
	if o.StopSignal != "" {
		if _, err := client.ParseSignal(o.StopSignal); err != nil {
			return o, fmt.Errorf("--stop-signal: %w", err)
		}
	}
	o.Note = func(format string, a ...any) { opts.note(cmd, fmt.Sprintf(format, a...)) }
	return o, nil
}

// pairs reads KEY=VALUE; KEY alone has no value.
func pairs(flag string, said []string) (map[string]string, error) {
	all := map[string]string{}
	for _, s := range said {
		key, value, _ := strings.Cut(s, "=")
		if key == "" {
			return nil, fmt.Errorf("%s %q: write KEY=VALUE: %w", flag, s, errdefs.ErrInvalidArgument)
		}
		all[key] = value
	}
	return all, nil
}

// parseMemory reads bytes as docker does: a number with b, k, m, g or t, which count in 1024.
func parseMemory(said string) (int64, error) {
	if said == "" {
		return 0, nil
	}
	text := strings.ToLower(strings.TrimSpace(said))
	text = strings.TrimSuffix(strings.TrimSuffix(text, "ib"), "b")
	factor := int64(1)
	for i, unit := range []string{"k", "m", "g", "t"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, factor = rest, 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || n < 0 || n*float64(factor) > 1<<62 {
		return 0, fmt.Errorf("--memory %q: write a number with k, m or g, such as 512m: %w", said, errdefs.ErrInvalidArgument)
	}
	return int64(n * float64(factor)), nil
}
