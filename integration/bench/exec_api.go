package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// podExecAPI times processes in a VM by containerd's own client in this process: what an exec costs without the start
// of ctr, and without what ctr asks for besides.
func (b *bench) podExecAPI(ctx context.Context, vm string) (err error) {
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	c, err := client.New(b.podNode.Socket)
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	container, err := c.LoadContainer(ctx, vm)
	if err != nil {
		return err
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return err
	}
	spec, err := container.Spec(ctx)
	if err != nil {
		return err
	}
	spec.Process.Args = []string{"/bin/echo", mark}
	var each []float64
	for i := range execs {
		var out strings.Builder
		begun := time.Now()
		p, err := task.Exec(ctx, fmt.Sprintf("a%d", i), spec.Process, cio.NewCreator(
			cio.WithStreams(nil, &out, io.Discard), cio.WithFIFODir(filepath.Join(b.podNode.dir, "fifo"))))
		if err != nil {
			return err
		}
		if err := ranTo(ctx, p); err != nil {
			return err
		}
		each = append(each, ms(time.Since(begun)))
		if !strings.Contains(out.String(), mark) {
			return fmt.Errorf("exec by the API: output %q", out.String())
		}
	}
	b.note("pods.exec_api", median(each))
	return nil
}

// ranTo starts a process, and deletes it after its end.
func ranTo(ctx context.Context, p client.Process) error {
	end, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	if s := <-end; s.ExitCode() != 0 || s.Error() != nil {
		return fmt.Errorf("exec by the API: status %d: %w", s.ExitCode(), s.Error())
	}
	p.IO().Wait() // Delete gives up what was not read yet
	_, err = p.Delete(ctx)
	return err
}
