package cli

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"godwit.dev/godwit/client"
)

// What is typed at a terminal reaches the VM, up to Ctrl-P Ctrl-Q, which leave it, however the keys arrive.
func TestLeaveKeys(t *testing.T) {
	for typed, want := range map[string]string{
		"abc": "abc", "a\x10b": "a\x10b", "a\x10\x10b": "a\x10\x10b",
		"a\x10\x11rest": "a", "\x11": "\x11", "a\x10\x10\x11": "a\x10",
	} {
		for name, in := range map[string]io.Reader{"whole": bytes.NewBufferString(typed),
			"byte by byte": iotest.OneByteReader(bytes.NewBufferString(typed))} {
			k := &leaveKeys{Reader: in, attached: make(chan *client.Process, 1)}
			k.attached <- &client.Process{}
			got, err := io.ReadAll(k)
			if err != nil && !errors.Is(err, io.EOF) || string(got) != want {
				t.Errorf("%q, %s: %q, %v; want %q", typed, name, got, err, want)
			}
		}
	}
}

// TestCommandThatCannotRun shows that a user reads why a command was not started, without the steps on the way to it.
func TestCommandThatCannotRun(t *testing.T) {
	long := errors.New(`start VM web: failed to create shim task: exec: "/no": stat /no: no such file`)
	for code, want := range map[int]string{
		client.NoCommand: `There is no such command in the VM. "/no": stat /no: no such file. ` +
			`Name one that the image has, or its whole path.`,
		client.NotRunnable: `The command cannot be run. "/no": stat /no: no such file.`,
	} {
		err := notRun(&client.CommandError{Code: code, Err: long})
		if p := new(options).explain(err); p.Error() != want || exitCode(err) != code {
			t.Errorf("exit code %d: %q, want %d: %q", exitCode(err), p.Error(), code, want)
		}
	}
	dir := &client.CommandError{Code: client.NoCommand, Dir: "/nodir", Err: errors.New(
		`exec in VM web: exec failed: chdir to cwd ("/nodir") set in config.json failed: no such file or directory`)}
	want := "The command cannot be run in the directory /nodir of the VM. No such file or directory. " +
		"To run it in another one: --workdir."
	if p := new(options).explain(notRun(dir)); p.Error() != want || exitCode(notRun(dir)) != client.NoCommand {
		t.Errorf("%q, want %q", p.Error(), want)
	}
}
