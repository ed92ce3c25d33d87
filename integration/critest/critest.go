package critest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Selection is what of a suite runs. Its zero value is all.
type Selection struct {
	Focus string // a regular expression of names
	Skip  string
}

// specTime bounds a whole run of critest; a single spec waits for a minute at most at each step.
const specTime = 2 * time.Hour

// Critest runs critest of cri-tools with a runtime handler. What it says goes to log.
func (g *Ground) Critest(ctx context.Context, handler string, s Selection, log io.Writer) ([]Spec, error) {
	report := filepath.Join(g.Dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return nil, err
	}
	args := []string{"-runtime-endpoint", "unix://" + g.Socket, "-runtime-handler", handler,
		"-test.timeout", specTime.String(), "-ginkgo.timeout", specTime.String(), "-ginkgo.no-color",
		"-nri-socket", nriSocket, "-ginkgo.randomize-all=false", "-ginkgo.seed=1", "-ginkgo.json-report", report}
	if s.Focus != "" {
		args = append(args, "-ginkgo.focus", s.Focus)
	}
	if s.Skip != "" {
		args = append(args, "-ginkgo.skip", s.Skip)
	}
	runErr := g.program(ctx, log, "critest", args...)
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		return nil, runErr
	}
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("run critest: %w; it wrote no report: %w", runErr, err)
	}
	return readGinkgo(data)
}

// program runs one of bin/tools in the node, with a directory for temporary files that ends with the node.
func (g *Ground) program(ctx context.Context, log io.Writer, name string, args ...string) error {
	tmp := filepath.Join(g.Dir, "tmp")
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return err
	}
	cmd := g.Command(ctx, filepath.Join(g.tools, name), args...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	cmd.Stdout, cmd.Stderr = log, log
	if err := g.Enter(cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run %s: %w", name, err)
	}
	return nil
}
