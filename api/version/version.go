// Package version names the build of the program it is linked into.
package version

// Version and Commit are set by the linker (see the Makefile).
var (
	Version = "devel"
	Commit  = "unknown"
)

// String is what the programs print for their version.
func String() string { return Version + " " + Commit }
