package ring

import (
	"bufio"
	"io"
	"regexp"
	"strings"
)

// verdicts is what a test program said of its tests, by name.
type verdicts map[string]string

var verdictLine = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)

// follow copies what a program says, line by line, and notes its verdicts.
func follow(from io.Reader, to io.Writer) (verdicts, error) {
	said := verdicts{}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if m := verdictLine.FindStringSubmatch(line); m != nil {
			said[m[2]] = m[1]
		}
		if _, werr := io.WriteString(to, line); werr != nil && err == nil {
			err = werr
		}
		if err == io.EOF {
			return said, nil
		}
		if err != nil {
			return said, err
		}
	}
}

// count is how many tests ended so; a test with tests below it is counted only if it
// failed and none of those did.
func (v verdicts) count(verdict string) (n int) {
	for name, got := range v {
		below, same := false, false
		for other, o := range v {
			if strings.HasPrefix(other, name+"/") {
				below, same = true, same || o == verdict
			}
		}
		if got == verdict && (!below || verdict == "FAIL" && !same) {
			n++
		}
	}
	return n
}

// named are the tests with that verdict.
func (v verdicts) named(verdict string) (names []string) {
	for name, got := range v {
		if got == verdict {
			names = append(names, name)
		}
	}
	return names
}
