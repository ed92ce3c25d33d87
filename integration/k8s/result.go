package k8s

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Case is one case with its end: pass, fail or skip.
type Case struct {
	Name    string  `json:"name"`
	End     string  `json:"end"`
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why,omitempty"` // it failed or was skipped
}

// Result is how the cases of a run ended.
type Result struct {
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"` // the start of the cluster among them
	Cases   []Case  `json:"cases"`
}

// line is what go test -json says.
type line struct {
	Action  string
	Test    string
	Elapsed float64
	Output  string
}

// Run runs go test -json, and shows its output as text while it comes. The first error says that the result could not
// be read, ended how the command itself ended.
func Run(cmd *exec.Cmd, show io.Writer) (r Result, err, ended error) {
	output, err := cmd.StdoutPipe()
	if err != nil {
		return r, err, nil
	}
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("start go test: %w", err), nil
	}
	r, err = Read(output, show)
	if err != nil {
		_, _ = io.Copy(io.Discard, output)
	}
	return r, err, cmd.Wait()
}

// Read reads the output of go test -json, and shows it as text while it comes.
func Read(from io.Reader, show io.Writer) (r Result, err error) {
	running := map[string]*strings.Builder{}
	lines := bufio.NewReader(from)
	for {
		text, rerr := lines.ReadString('\n')
		if text != "" {
			var l line
			if json.Unmarshal([]byte(text), &l) != nil {
				fmt.Fprint(show, text) // of the compiler
			} else {
				fmt.Fprint(show, l.Output)
				r.take(l, running)
			}
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return r, fmt.Errorf("read the output of go test: %w", rerr)
		}
	}
	for name := range running { // the program ended before they did
		r.add(Case{Name: name, End: "fail", Why: "it did not end"})
	}
	return r, nil
}

// take adds what a line says. Parts of a case are not counted.
func (r *Result) take(l line, running map[string]*strings.Builder) {
	switch {
	case l.Test == "":
		r.Seconds = max(r.Seconds, l.Elapsed)
	case strings.Contains(l.Test, "/"):
	case l.Action == "run":
		running[l.Test] = &strings.Builder{}
	case l.Action == "output" && running[l.Test] != nil:
		running[l.Test].WriteString(l.Output)
	case slices.Contains([]string{"pass", "fail", "skip"}, l.Action):
		c := Case{Name: l.Test, End: l.Action, Seconds: l.Elapsed}
		if out := running[l.Test]; out != nil && l.Action != "pass" {
			c.Why = reason(out.String())
		}
		delete(running, l.Test)
		r.add(c)
	}
}

func (r *Result) add(c Case) {
	switch c.End {
	case "pass":
		r.Passed++
	case "skip":
		r.Skipped++
	default:
		r.Failed++
	}
	r.Cases = append(r.Cases, c)
}

// reason is the first line of a case that says where and why.
func reason(output string) string {
	for l := range strings.Lines(output) {
		if place, text, ok := strings.Cut(strings.TrimSpace(l), ": "); ok && strings.Contains(place, "_test.go:") {
			return strings.TrimSpace(text)
		}
	}
	return strings.TrimSpace(output)
}

// Err says why the run is no success.
func (r Result) Err() error {
	var errs []error
	if r.Passed == 0 {
		errs = append(errs, errors.New("no case passed"))
	}
	for _, c := range r.Cases {
		if c.End == "fail" {
			errs = append(errs, fmt.Errorf("%s failed: %s", c.Name, c.Why))
		}
		if c.End == "skip" {
			errs = append(errs, fmt.Errorf("%s was skipped: %s", c.Name, c.Why))
		}
	}
	return errors.Join(errs...)
}
