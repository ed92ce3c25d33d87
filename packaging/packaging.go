// Package packaging has the files that an installation puts down and that a program writes again.
package packaging

import _ "embed" // of the file below

// ContainerdDropIn names the runtime to containerd's CRI.
//
//go:embed containerd-godwit.toml
var ContainerdDropIn []byte
