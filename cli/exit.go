package cli

import (
	"context"
	"errors"

	"godwit.dev/godwit/client"
)

// Exit codes of verbs that run a command in a VM, as docker has them. Any other is the command's own.
const exitOwn = 125 // godwit itself has failed

// dockerCodes marks a verb that ends with docker's exit codes.
const dockerCodes = "docker-codes"

// exitError ends the program with a code. Without err nothing more is said: the command in the VM has spoken.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// ran is the end of a command in a VM.
func ran(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// notRun gives an error of such a verb docker's exit code: 127 there is no such command, 126 it cannot be run, else
// 125. That of an interrupt stays.
func notRun(err error) error {
	if _, ok := errors.AsType[*exitError](err); ok || err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	code := exitOwn
	if c, ok := errors.AsType[*client.CommandError](err); ok {
		code = c.Code
	}
	return &exitError{code: code, err: err}
}
