// Package seccomp turns the seccomp profile of an OCI spec into a filter for the
// guest's kernel. The shim compiles, so that a profile that cannot be honoured fails
// the Create; package guest/stage installs the result before a process of the container
// becomes itself.
package seccomp

//go:generate go run gen.go
