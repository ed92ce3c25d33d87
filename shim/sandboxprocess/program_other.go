//go:build !amd64

package sandboxprocess

// wait is not known for this CPU: the sandbox process stays the Go program that it is.
var wait []byte
