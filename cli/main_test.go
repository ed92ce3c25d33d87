package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

// A mistake in the command line is InvalidArgument, in the one shape of errors, and
// never a success that did nothing.
func TestMistakes(t *testing.T) {
	for _, args := range []string{
		"foo", "node", "node foo", "controller", "controller retire", "controller restore n", "snapshot", "snapshot foo",
		"ps extra", "version extra", "snapshot ls a b", "snapshot inspect", "snapshot verify",
		"hibernate", "hibernate a b", "wake a/b/c", "wake /b", "rm", "node token", "node join", "--nope", "ps --nope",
		"-o toml ps",
	} {
		for _, output := range []string{"text", "json"} {
			t.Run(output+" "+args, func(t *testing.T) {
				var stdout, stderr bytes.Buffer
				words := strings.Fields(args)
				if output == "json" && !strings.Contains(args, "-o ") {
					words = append([]string{"-o", "json"}, words...)
				}
				if got := Run(t.Context(), words, &stdout, &stderr); got != 2 {
					t.Errorf("exit code %d, want 2; stdout %q, stderr %q", got, &stdout, &stderr)
				}
				if stdout.Len() > 0 {
					t.Errorf("stdout %q", &stdout)
				}
				if words[0] != "-o" || words[1] != "json" {
					return
				}
				var shape struct {
					Error struct {
						Class, Message string
						Exit           int
					}
				}
				if err := json.Unmarshal(stderr.Bytes(), &shape); err != nil || shape.Error.Class != "InvalidArgument" ||
					shape.Error.Exit != 2 || shape.Error.Message == "" {
					t.Errorf("stderr %q: %v", &stderr, err)
				}
			})
		}
	}
}

// someDigest is one that a snapshot could have.
var someDigest = "sha256:" + strings.Repeat("0f", 32)

// Flags that cannot be are refused before the daemon is looked for, each by its name.
func TestFlagsBeforeTheDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for args, says := range map[string]string{
		"migrate --mode warm x": "warm", "migrate --downtime -5s x": "downtime -5s", "migrate --timeout 1s x": "timeout 1s",
		"migrate --bandwidth 1 x":    "bandwidth",
		"migrate --bandwidth fast x": "--bandwidth fast", "migrate --abort-on rain x": "rain",
		"migrate --abort-on downtime x": "needs a downtime",
		"migrate --wait --detach x":     "--wait and --detach", "drain --mode warm n": "warm",
		"recover --from-source --to n x": "--from-source", "recover --fenced x": "--to",
		"hibernate --concurrency 65 x": "--concurrency 65", "hibernate --bandwidth fast x": "--bandwidth fast",
		"hibernate --pause-budget 2m x": "--pause-budget 2m",
		"checkpoint --concurrency 65 x": "--concurrency 65", "checkpoint --every 1m --stop x": "--every and --stop",
		"checkpoint --every -1s x": "--every -1s",
		"checkpoint --every 0s x":  "--every 0s", "checkpoint --keep 2 x": "--keep", "checkpoint --stop --keep 2 x": "--keep",
		"checkpoint --every 1m --detach x":     "--detach",
		"checkpoint --stop --bandwidth 1MiB x": "--bandwidth", "golden --timeout 0s i": "--timeout 0s",
		"template make i": "--boot or --image is missing", "template make --boot --image i": "--boot and --image",
		"template make --image": "IMAGE is missing", "template make --boot i": "one argument too many",
		"template make --boot --ready true":  "--ready: it belongs to --image",
		"template make --image --nics 2 i":   "--nics: it belongs to --boot",
		"template make --boot --timeout 0s":  "--timeout 0s",
		"template make --boot --memory much": "--memory much", "template make --boot --vcpus 0": "--vcpus 0",
		"template make --boot --layers 0": "--layers 0", "template ls --boot --image": "--boot and --image",
		"template rm": "TEMPLATE is missing", "template push x": "TO is missing", "wake --force x": "--digest",
		"wake --on= x": "--on", "wake --on n --lost-node m x": "godwit recover", "wake --wait --on n x": "--wait",
		"wake --timeout 5s x": "--timeout", "wake --wait --timeout 0s x": "--timeout 0s", "-o toml migrate x": "toml",
		"migrate --bandwidth 0 x": "--bandwidth 0: at least", "migrate --downtime -1us x": "downtime -1ms",
		"migrate --timeout 1us x": "timeout 1ms", "migrate --downtime 11m x": "downtime 11m",
		"dashboard --address 0.0.0.0:0": "--address 0.0.0.0:0",
		"wake --digest web:latest x":    `--digest "web:latest"`, "wake --digest= x": `--digest ""`,
		"wake --digest sha512:00 --force x": `--digest "sha512:00"`, "recover --to n --digest we/b x": `--digest "we/b"`,
		"snapshot inspect we/b": `DIGEST "we/b"`, "snapshot verify sha256:0g": `DIGEST "sha256:0g"`,
		"snapshot rm web:latest":                 `DIGEST "web:latest"`,
		"rm --final-snapshot --force x":          "--final-snapshot and --force",
		"rm --final-snapshot --keep-snapshots x": "--keep-snapshots",
		"rm --detach x":                          "--detach: it belongs to --final-snapshot",
		"rm --end-execs x":                       "--end-execs: it belongs",
		"rm --cancel --final-snapshot x":         "--cancel and --final-snapshot",
		"rm --cancel --force x":                  "--cancel and --force",
		"snapshot diff we/b " + someDigest:       `FROM "we/b"`, "snapshot diff " + someDigest + " we/b": `TO "we/b"`,
		"snapshot copy we/b registry/x": `DIGEST "we/b"`,
	} {
		var stdout, stderr bytes.Buffer
		if got := Run(t.Context(), append([]string{"--socket", socket}, strings.Fields(args)...), &stdout,
			&stderr); got != 2 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%s: exit code %d, want 2; stderr %q, want %q", args, got, &stderr, says)
		}
	}
}

// Without a daemon every verb that needs it says so in the same words, and how to get one.
func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range []string{
		"ps", "hibernate x", "wake x", "checkpoint x", "rm x", "rm --final-snapshot x", "rm --cancel x", "golden i",
		"template ls", "template make --boot", "template make --image i", "template rm x", "template push x reg/vms",
		"snapshot ls", "snapshot inspect " + someDigest, "snapshot verify " + someDigest, "snapshot prune",
		"dashboard", "migrate x", "migrations", "watch", "abort o", "nodes", "controller status", "controller restore",
		"controller retire n", "cordon n", "drain n", "recover x",
	} {
		var stdout, stderr bytes.Buffer
		if got := Run(t.Context(), append([]string{"--socket", socket}, strings.Fields(args)...), &stdout,
			&stderr); got != 6 {
			t.Errorf("%s: exit code %d, want 6; stderr %q", args, got, &stderr)
		}
		if got := stderr.String(); !strings.Contains(got, "nothing listens at "+socket) ||
			!strings.Contains(got, "systemctl start godwitd") {
			t.Errorf("%s: stderr %q does not name the socket and the remedy", args, got)
		}
	}
}

// docs/reference/cli.md names every verb and every flag, and errors.md every class with its
// exit code.
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile("../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() && cmd.Name() != "help" && cmd.Parent() != nil && cmd.Parent().Name() != "completion" &&
			!strings.Contains(text, cmd.CommandPath()) {
			t.Errorf("docs/reference/cli.md does not name %q", cmd.CommandPath())
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if cmd.HasParent() && cmd.Parent().Name() == "completion" { // cobra's own
				return
			}
			if f.Name != "help" && !strings.Contains(text, "--"+f.Name) &&
				(f.Shorthand == "" || !strings.Contains(text, "-"+f.Shorthand)) {
				t.Errorf("docs/reference/cli.md does not name --%s of %q", f.Name, cmd.CommandPath())
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&options{}))
	if data, err = os.ReadFile("../docs/reference/errors.md"); err != nil {
		t.Fatal(err)
	}
	text = string(data)
	for _, c := range classes {
		row := fmt.Sprintf("| %d |", c.exit)
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.HasPrefix(line, row) && strings.Contains(line, c.name)
		}
		if !found {
			t.Errorf("docs/reference/errors.md has no row %q with %s", row, c.name)
		}
	}
}

// An error that no part has classed has a class where the host is at fault, so that scripts know whether to try again.
// An error that has none of its own is unknown.
func TestFaultsOfTheHostHaveAnExitCode(t *testing.T) {
	for err, want := range map[error]int{syscall.EMFILE: 8, syscall.ENOSPC: 8, syscall.ECONNREFUSED: 6, syscall.EACCES: 7,
		errdefs.ErrInternal: 1, io.EOF: 1} {
		if _, exit := classify(fmt.Errorf("a: %w", err)); exit != want {
			t.Errorf("%v: exit code %d, want %d", err, exit, want)
		}
	}
}

// A verdict names each bad part, and a bad part ends the command with DataLoss.
func TestVerdict(t *testing.T) {
	for _, output := range []string{"text", "json"} {
		var out bytes.Buffer
		if err := printVerdict(&out, screen.Format(output), "sha256:1", &nodev1.VerifyResponse{Packs: 2, Frames: 9,
			Bytes: 1 << 20}); err != nil {
			t.Errorf("%s: a whole snapshot: %v", output, err)
		}
		err := printVerdict(&out, screen.Format(output), "sha256:1",
			&nodev1.VerifyResponse{Bad: []*nodev1.BadPart{{Part: "frame 3", Reason: "r"}}, More: 4})
		if _, exit := classify(err); exit != 9 || !strings.Contains(err.Error(), "5 parts") ||
			!strings.Contains(out.String(), "frame 3") {
			t.Errorf("%s: %v, printed %s", output, err, &out)
		}
	}
}
