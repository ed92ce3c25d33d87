package client

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
)

// What a runtime says of a command that does not start gets docker's code. A directory that it cannot enter is named.
func TestCommandError(t *testing.T) {
	for _, c := range []struct {
		text, dir string
		code      int // 0: it is not about the command
	}{
		{`exec: "/no": stat /no: no such file or directory`, "", NoCommand},
		{`exec: "nothing": executable file not found in $PATH`, "", NoCommand},
		{`exec: "/etc": is a directory`, "", NotRunnable},
		{`OCI runtime exec failed: chdir to cwd ("/nodir") set in config.json failed: no such file or directory`, "/nodir",
			NoCommand},
		{`chdir to cwd ("/root") set in config.json failed: permission denied`, "/root", NotRunnable},
		{`VM web is paused`, "", 0},
	} {
		err := commandError(fmt.Errorf("%s: %w", c.text, errdefs.ErrUnknown))
		command, found := errors.AsType[*CommandError](err)
		if found != (c.code != 0) || found && (command.Code != c.code || command.Dir != c.dir) {
			t.Errorf("%s: %+v", c.text, err)
		}
	}
}

// A daemon that does not run is told with what helps, and with nothing that does not.
func TestNotWholeSaysWhatHelps(t *testing.T) {
	nothing := fmt.Errorf("godwitd does not run: nothing listens at /run/x.sock. To start it: systemctl start godwitd: %w",
		errdefs.ErrUnavailable)
	for want, causes := range map[string][]error{
		"It is not known whether there is a VM default/web. godwitd does not run: nothing listens at /run/x.sock. " +
			"To start it: systemctl start godwitd. To name another socket: --socket.": {nothing},
		"It is not known whether there is a VM default/web. containerd does not run. godwitd does not run: nothing listens " +
			"at /run/x.sock. To start them: systemctl start containerd, systemctl start godwitd. To name other sockets: " +
			"--containerd, --socket.": {&Problem{What: "containerd does not run.", Remedy: "To start it: systemctl start " +
			"containerd. To name another socket: --containerd."}, nothing},
		"It is not known whether there is a VM default/web. Node b does not answer. " +
			"To go on, name it by its whole id, or try again.": {fmt.Errorf("node b does not answer: %w",
			errdefs.ErrUnavailable)},
	} {
		if got := notWhole("VM", "default/web", causes); got.Error() != want {
			t.Errorf("%s\nwant %s", got.Error(), want)
		}
	}
}
