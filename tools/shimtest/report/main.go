// Command report reads what the test program printed, compares the cases that ran with
// the list, and writes the figures as JSON.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"godwit.dev/godwit/tools/shimtest"
)

// Report is out/shimtest.json.
type Report struct {
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Seconds float64  `json:"seconds"`
	Runs    int      `json:"runs"`
	LeftOut []string `json:"left_out"`
}

func main() {
	runs := flag.Int("runs", 1, "how often every case has to be there")
	mode := flag.String("mode", "", "only the cases of overlay or block")
	out := flag.String("out", "", "file for the figures")
	flag.Parse()
	if err := report(os.Stdin, *runs, *mode, *out); err != nil {
		fmt.Fprintln(os.Stderr, "shimtest:", err)
		os.Exit(1)
	}
}

func report(in io.Reader, runs int, mode, out string) error {
	listed, leftOut := shimtest.Cases()
	other := func(name string) bool { return mode != "" && !strings.HasPrefix(name, mode+"/") }
	listed, leftOut = slices.DeleteFunc(listed, other), slices.DeleteFunc(leftOut, other)
	got, err := read(in)
	if err != nil {
		return err
	}
	r := Report{Runs: runs, Seconds: got.seconds, LeftOut: leftOut}
	var wrong []string
	for name, c := range got.cases {
		if !got.leaf(name) {
			continue
		}
		r.Passed, r.Failed, r.Skipped = r.Passed+c["PASS"], r.Failed+c["FAIL"], r.Skipped+c["SKIP"]
		if !slices.Contains(listed, name) {
			wrong = append(wrong, name+" is not on the list")
		}
	}
	r.Failed += got.leaks()
	for _, name := range listed {
		if n := got.cases[name]["PASS"]; n != runs {
			wrong = append(wrong, fmt.Sprintf("%s passed %d of %d times", name, n, runs))
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Printf("shimtest: %d passed, %d failed, %d skipped, %d left out, %d runs, %.0f s\n", r.Passed, r.Failed, r.Skipped,
		len(leftOut), runs, r.Seconds)
	slices.Sort(wrong)
	if len(wrong) > 0 || r.Failed > 0 || r.Skipped > 0 {
		return fmt.Errorf("%d failed\n%s", r.Failed, strings.Join(wrong, "\n"))
	}
	return nil
}

// results count the verdicts on every name below TestShim.
type results struct {
	cases   map[string]map[string]int
	seconds float64
}

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): TestShim(?:/(\S+))? \(([0-9.]+)s\)`)

func read(in io.Reader) (*results, error) {
	r := &results{cases: make(map[string]map[string]int)}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		m := verdict.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if m[2] == "" {
			s, err := strconv.ParseFloat(m[3], 64)
			if err != nil {
				return nil, err
			}
			r.seconds += s
			continue
		}
		if r.cases[m[2]] == nil {
			r.cases[m[2]] = make(map[string]int)
		}
		r.cases[m[2]][m[1]]++
	}
	return r, lines.Err()
}

func (r *results) leaf(name string) bool {
	for other := range r.cases {
		if strings.HasPrefix(other, name+"/") {
			return false
		}
	}
	return true
}

// leaks are failures of a whole suite none of whose cases failed: processes that were left over.
func (r *results) leaks() int {
	n := 0
	for name, c := range r.cases {
		if r.leaf(name) || c["FAIL"] == 0 {
			continue
		}
		below := 0
		for other, o := range r.cases {
			if strings.HasPrefix(other, name+"/") {
				below += o["FAIL"]
			}
		}
		if below == 0 {
			n += c["FAIL"]
		}
	}
	return n
}
