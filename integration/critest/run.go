package critest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"godwit.dev/godwit/integration/harness"
)

// Order is one comparison.
type Order struct {
	Suite   string // critest or cri-suite
	Handler string // the runtime handler under test; Control measures the control alone
	Release harness.Release
	Selection
	Logs string // directory for what the suites print
	Log  func(format string, args ...any)
}

// Run runs a suite with the control and then with the handler, in the same node, and compares them.
func Run(ctx context.Context, o Order) (r Result, err error) {
	known, err := Known(o.Suite)
	if err != nil {
		return r, fmt.Errorf("find suite %q: %w", o.Suite, err)
	}
	floor, err := Floor(o.Suite)
	if err != nil {
		return r, err
	}
	g, err := Open(ctx, o.Release, o.Log)
	if err != nil {
		return r, err
	}
	defer func() {
		g.h.KeepIn(filepath.Join(o.Logs, o.Suite+"-daemons"))
		if cerr := g.Close(); err == nil {
			err = cerr
		}
	}()
	control, err := g.run(ctx, o, Control)
	if err != nil {
		return r, err
	}
	subject := control
	if o.Handler == Control {
		known = map[string]string{}
		for _, s := range control {
			if s.State != Passed {
				known[s.Name] = "with the control alone all is explained"
			}
		}
	} else if subject, err = g.subject(ctx, o); err != nil {
		return r, err
	}
	r = Judge(control, subject, known, floor, o.Selection != Selection{})
	r.Suite, r.Release, r.Handler = o.Suite, string(o.Release), o.Handler
	return r, nil
}

// subject runs the suite with the handler under test. The Create of a pod asks the node's godwitd, so it runs by then.
func (g *Ground) subject(ctx context.Context, o Order) ([]Spec, error) {
	if err := g.StartGodwitd(ctx); err != nil {
		return nil, fmt.Errorf("start godwitd: %w", err)
	}
	return g.run(ctx, o, o.Handler)
}

func (g *Ground) run(ctx context.Context, o Order, handler string) ([]Spec, error) {
	if err := os.MkdirAll(o.Logs, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.Logs, o.Suite+"-"+handler+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	suites := map[string]func(context.Context, string, Selection, io.Writer) ([]Spec, error){
		"critest": g.Critest, "cri-suite": g.Suite,
	}
	o.Log("%s with runtime handler %s: %s", o.Suite, handler, log.Name())
	specs, err := suites[o.Suite](ctx, handler, o.Selection, log)
	if err != nil {
		return nil, fmt.Errorf("run %s with %s: %w", o.Suite, handler, err)
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("run %s with %s: no spec was run", o.Suite, handler)
	}
	return specs, nil
}
