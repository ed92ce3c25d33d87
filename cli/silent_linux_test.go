package cli

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/record"
)

// given are arguments and flags that each verb takes where its line of usage names them.
var given = map[string]string{
	"VM": "vm", "NODE": "b", "OPERATION": "op", "IMAGE": "image", "COMMAND": "true", "ARG": "x", "NAME": "c",
	"NEW": "n", "KIND": "postStop",
	"DIGEST": "sha256:" + strings.Repeat("0", 64), "FROM": "sha256:" + strings.Repeat("0", 64),
	"TO":           "sha256:" + strings.Repeat("1", 64),
	"TEMPLATE":     strings.Repeat("0", 32),
	"SOURCE":       "x:/etc",
	"DESTINATION":  "here",
	"IMAGE|DIGEST": "sha256:" + strings.Repeat("0", 64),
}

// flagsOf are flags without which a verb asks no daemon.
var flagsOf = map[string][]string{
	"template make": {"--boot"},
	"migrate":       {"--to", "b"}, "recover": {"--to", "b", "--fenced"},
}

// alone are verbs that need no daemon, or have another way to ask.
var alone = []string{"completion", "doctor", "version", "node init", "node join", "node token", "controller restore",
	"docs", "run", "create", "pull", "images", "oci-hook", "stats"}

// The daemon takes no connection from the queue of its socket. Each verb that asks it ends, says at which socket no
// answer came, and exits with 6: it has no free descriptors, or is stopped.
func TestNoVerbWaitsForASilentDaemon(t *testing.T) {
	defer func(g record.Guard) { guard = g }(guard)
	guard = record.Guard{Silence: 50 * time.Millisecond, Answer: 50 * time.Millisecond}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("node = \"a\"\nstate_dir = \""+dir+"\"\nrun_dir = \""+dir+"\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context()) // no deadline, which would be a bound
	defer cancel()
	defer time.AfterFunc(2*time.Minute, cancel).Stop()
	var all sync.WaitGroup
	asked := 0
	for _, args := range commandLines(newRoot(&options{}), nil) {
		if slices.ContainsFunc(alone, func(l string) bool { return strings.HasPrefix(strings.Join(args, " ")+" ", l+" ") }) {
			continue
		}
		asked++
		all.Go(func() {
			var out, errs bytes.Buffer
			code := Run(ctx, append([]string{"--config", config, "--socket", socket}, args...), &out, &errs)
			want := 6
			if args[0] == "exec" {
				want = exitOwn
			}
			if code != want || !strings.Contains(errs.String(), socket) {
				t.Errorf("godwit %s: exit code %d, %s%s", strings.Join(args, " "), code, &out, &errs)
			}
		})
	}
	all.Wait()
	if asked < 25 {
		t.Errorf("%d verbs were tried", asked)
	}
}

// commandLines are a command line of each verb below cmd.
func commandLines(cmd *cobra.Command, path []string) (all [][]string) {
	for _, sub := range cmd.Commands() {
		line := append(slices.Clone(path), sub.Name())
		all = append(all, commandLines(sub, line)...)
		if sub.HasSubCommands() {
			continue
		}
		name := strings.Join(line, " ")
		line = append(line, flagsOf[name]...)
		for _, a := range argumentsOf(sub.Use) {
			if !a.optional {
				line = append(line, given[a.name])
			}
		}
		all = append(all, line)
	}
	return all
}
