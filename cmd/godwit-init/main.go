// Command godwit-init is process 1 of a guest that was booted from a container image,
// and, started by itself, the stage between fork and exec of a container's process.
package main

import (
	"os"
	"runtime"

	"godwit.dev/godwit/guest/initd"
	"godwit.dev/godwit/guest/stage"
)

// version is set by the linker.
var version = "unknown"

func init() {
	// A stage must stay on the main thread, whose namespaces exec keeps.
	if len(os.Args) == 2 {
		runtime.LockOSThread()
	}
}

func main() {
	if len(os.Args) == 2 && (os.Args[1] == stage.ArgInit || os.Args[1] == stage.ArgExec) {
		os.Exit(stage.Main(os.Args[1]))
	}
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString("godwit-init runs as process 1 of a guest\n")
		os.Exit(2)
	}
	initd.Main(version)
}
