//go:build integration

package usability

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// step is one command of the day.
type step struct {
	number  int
	name    string
	command string
}

var unsafe = regexp.MustCompile(`[^a-z0-9]+`)

func (s step) file() string {
	return fmt.Sprintf("%02d-%s.golden", s.number, strings.Trim(unsafe.ReplaceAllString(strings.ToLower(s.name), "-"),
		"-"))
}

// readSteps reads lines "NAME: COMMAND". Empty lines and those that begin with # are comments.
func readSteps(file string) (all []step, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, command, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: %q is no NAME: COMMAND", file, line)
		}
		all = append(all, step{number: len(all) + 1, name: name, command: command})
	}
	return all, nil
}

// phases are those of hibernate, wake and checkpoint, by package engine and package snapshot.
const phases = `begin|capture|precopy|upload|commit|vote|release|list|clean up|find snapshot|restore|start|observe|` +
	`fill|lazy fill`

// changing is what differs from run to run, and what stands for it on a reviewed screen.
var changing = []struct {
	pattern *regexp.Regexp
	as      string
}{
	// Which phases are long enough to be told depends on the load: a line is a phase, and what it waits for.
	{regexp.MustCompile(`(?m)^(` + phases + `)( \(waiting: .*\))?(: .*)?\n`), ""},
	// What a host's file system lacks, is not the verb's.
	{regexp.MustCompile(`(?m)^disk .*\n`), ""},
	{regexp.MustCompile(`/tmp/gw[0-9]+-[0-9]+`), "/DIR"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "sha256:DIGEST"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "SHORTDIGEST"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{40}\b`), "COMMIT"},
	{regexp.MustCompile(`\b(busybox)-[0-9a-f]{8}\b`), "$1-RANDOM"},
	{regexp.MustCompile(`\b(\d+(\.\d+)? ?(ms|s|m|h|d|seconds|minutes))+\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?([KMGT]i?)?B(/s)?\b`), "SIZE"},
	{regexp.MustCompile(`\b\d+ checks are well, \d+ (has|have) a warning\b`), "N checks are well, N have a warning"},
	{regexp.MustCompile(`\b\d+(\.\d+)?%`), "PERCENT"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`  +`), "  "}, // the width of a column follows what stands in it
}

func normal(screen string) string {
	for _, c := range changing {
		screen = c.pattern.ReplaceAllString(screen, c.as)
	}
	var lines []string
	for line := range strings.Lines(screen) {
		lines = append(lines, strings.TrimRight(line, " \r\n")+"\n")
	}
	return strings.Join(lines, "")
}
