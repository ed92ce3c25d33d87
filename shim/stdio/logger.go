package stdio

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	runcio "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"github.com/containerd/errdefs"
)

// loggerBound is how long a logging program may take until it is ready. A variable for
// the tests.
var loggerBound = 10 * time.Second

// startLogger starts a logging program: it reads stdout from descriptor 3 and stderr
// from 4, and closes 5 when it is ready.
func (st *Streams) startLogger(namespace, id string, u *url.URL) error {
	var ends [3][2]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start logger: %w", err)
		}
		defer r.Close()
		ends[i] = [2]*os.File{r, w}
	}
	out, errs, wait := ends[0], ends[1], ends[2]
	cmd := runcio.NewBinaryCmd(u, id, namespace)
	cmd.ExtraFiles = []*os.File{out[0], errs[0], wait[1]}
	err := cmd.Start()
	wait[1].Close()
	if err != nil {
		return errors.Join(fmt.Errorf("start logger %s: %w", u.Path, err), out[1].Close(), errs[1].Close())
	}
	st.stdout, st.stderr, st.loggerPID = out[1], errs[1], cmd.Process.Pid
	// It ends by itself when both streams have ended.
	go func() { _ = cmd.Wait() }()
	if err := wait[0].SetReadDeadline(time.Now().Add(loggerBound)); err != nil {
		return fmt.Errorf("start logger: %w", err)
	}
	n, err := wait[0].Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = cmd.Process.Kill()
		return fmt.Errorf("start logger %s: it was not ready after %v, and did not close descriptor 5: %w", u.Path,
			loggerBound, errdefs.ErrFailedPrecondition)
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("start logger %s: %w", u.Path, err)
	}
	if n == 0 && u.Scheme == "binary-v2" {
		return fmt.Errorf("start logger %s: it ended before it was ready: %w", u.Path, errdefs.ErrFailedPrecondition)
	}
	return nil
}
