// Package initd boots a guest as process 1: mounts, modules, the agent's channel. It
// powers the VM off, saying why on the console, when it cannot go on.
package initd
