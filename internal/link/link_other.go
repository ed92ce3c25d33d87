//go:build !linux

package link

import "syscall"

// impatient is Linux' alone; the CLI, which runs elsewhere too, has its calls' deadlines.
func impatient(syscall.RawConn) error { return nil }
