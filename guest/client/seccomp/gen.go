//go:build ignore

// Writes syscalls.txt from the numbers that golang.org/x/sys has: a line for each
// name, with its number on x86_64 and on i386, "-" where the architecture has none.
package main

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var line = regexp.MustCompile(`(?m)^\s*SYS_(\w+)\s*=\s*(\d+)`)

// elsewhere are calls of other architectures that have no number of the usual kind.
var elsewhere = []string{"breakpoint", "cacheflush", "set_tls", "get_tls", "usr26", "usr32"}

func main() {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		log.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_*.go"))
	if err != nil || len(files) < 10 {
		log.Fatalf("found %d tables: %v", len(files), err)
	}
	table := map[string][2]string{}
	for _, name := range elsewhere {
		table[name] = [2]string{"-", "-"}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(data), -1) {
			name := strings.ToLower(m[1])
			row, ok := table[name]
			if !ok {
				row = [2]string{"-", "-"}
			}
			switch filepath.Base(file) {
			case "zsysnum_linux_amd64.go":
				row[0] = m[2]
			case "zsysnum_linux_386.go":
				row[1] = m[2]
			}
			table[name] = row
		}
	}
	var out []string
	for name, row := range table {
		out = append(out, fmt.Sprintf("%s %s %s\n", name, row[0], row[1]))
	}
	slices.Sort(out)
	if err := os.WriteFile("syscalls.txt", []byte(strings.Join(out, "")), 0o644); err != nil {
		log.Fatal(err)
	}
}
