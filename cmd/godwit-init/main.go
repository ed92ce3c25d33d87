// Command godwit-init is process 1 of a guest that was booted from a container image.
// Started by itself, it is the stage between fork and exec of a container's process. Started by the kernel as modprobe,
// it loads a module.
//
// It does not ask cgroups for the number of processors: it is in none that limits them,
// and asking costs each process of a container some milliseconds without KVM.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/guest/initd"
	"godwit.dev/godwit/guest/stage"
	"godwit.dev/godwit/internal/gcpause"
)

func init() {
	// A stage must stay on the main thread, whose namespaces exec keeps.
	if len(os.Args) == 2 {
		runtime.LockOSThread()
	}
}

func main() {
	if len(os.Args) == 2 && slices.Contains(stage.Args, os.Args[1]) {
		os.Exit(stage.Main(os.Args[1]))
	}
	if filepath.Base(os.Args[0]) == "modprobe" {
		os.Exit(initd.Modprobe(os.Args[1:]))
	}
	if len(os.Args) > 1 && (os.Args[1] == "-version" || os.Args[1] == "--version") {
		if version.Write(os.Stdout, "godwit-init", slices.Contains(os.Args[2:], "-json") ||
			slices.Contains(os.Args[2:], "--json")) != nil {
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString("godwit-init runs as process 1 of a guest\n")
		os.Exit(2)
	}
	gcpause.Keep(gcpause.Idle)
	initd.Main(version.Version)
}
