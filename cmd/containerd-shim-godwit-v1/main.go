// Command containerd-shim-godwit-v1 is containerd's runtime shim for godwit: one process for
// each VM. It serves containerd's task service on containerd's socket. It serves godwit's
// machine service there and, for godwitd, on a socket in run_dir.
//
// The same binary has other jobs: the worker that handles RAM pages, the sandbox process of a
// task, the successor of a shim that died, the maker of templates. It also says whether a VM
// could come here.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/pkg/shim"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/internal/coredump"
	"godwit.dev/godwit/internal/gcpause"
	"godwit.dev/godwit/shim/adopt"
	"godwit.dev/godwit/shim/bootstrap"
	"godwit.dev/godwit/shim/fit"
	"godwit.dev/godwit/shim/program"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/template/maker"
	"godwit.dev/godwit/shim/tracking"
	"godwit.dev/godwit/snapshot/worker"
)

func main() {
	if err := keepSecrets(os.Args[1:]); err != nil {
		os.Exit(report(err))
	}
	os.Exit(run(os.Args[1:]))
}

// keepSecrets is about the RAM and the keys that most of the roles see. The sandbox process sees none, and
// what stands for the task in /proc is looked at by hooks and CNI, whatever their rights.
func keepSecrets(args []string) error {
	if role(args) == sandboxprocess.Subcommand {
		return coredump.Limit()
	}
	return coredump.Forbid()
}

// run tells the roles of the binary apart. All that containerd may ask except start
// is answered by its own library.
func run(args []string) int {
	switch role(args) {
	case "start":
		return report(bootstrap.Start(context.Background(), args, os.Stdin, os.Stdout))
	case "version":
		return report(version.Write(os.Stdout, bootstrap.Name, slices.Contains(args, "-json") ||
			slices.Contains(args, "--json")))
	case program.Worker:
		gcpause.Keep(gcpause.Busy)
		return worker.Main(context.Background(), os.Stdin, os.Stdout)
	case sandboxprocess.Subcommand:
		return report(sandboxprocess.Main(args[1:]))
	case program.Template:
		gcpause.Keep(gcpause.Idle)
		return report(maker.Main(context.Background(), args[1:], os.Stdin, os.Stdout))
	case program.Fit:
		return report(fit.Main(context.Background(), args[1:], os.Stdin, os.Stdout))
	case tracking.Subcommand:
		return report(tracking.Child())
	case program.Adopt:
		gcpause.Keep(gcpause.Idle)
		return report(adopt.Main(context.Background(), args[1:]))
	}
	gcpause.Keep(gcpause.Idle)
	bootstrap.Register()
	shim.RunShim(context.Background(), bootstrap.Manager{}, func(c *shim.Config) {
		// Children are waited for by those who start them.
		c.NoReaper, c.NoSubreaper = true, true
	})
	return 0
}

// role is the subcommand of godwit's own roles, "start" or "version" wherever they
// stand, or empty.
func role(args []string) string {
	if len(args) > 0 {
		switch args[0] {
		case program.Worker, sandboxprocess.Subcommand, program.Adopt, program.Template, tracking.Subcommand, program.Fit:
			return args[0]
		}
	}
	for _, a := range args {
		switch a {
		case "start":
			return "start"
		case "delete":
			return ""
		case "-v", "--v", "-version", "--version":
			return "version"
		}
	}
	return ""
}

func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	return 1
}
