package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"godwit.dev/godwit/internal/ptytest"
)

// Shells are told the names of what is there: VMs with their state, nodes, digests, operations, values of flags.
// Without a daemon they are told nothing, and no error.
func TestCompletion(t *testing.T) {
	socket, none := daemonOf(t), place(t)
	hex := someDigest[7:19]
	for line, want := range map[string][]string{
		"hibernate w": {"web\tasleep"}, "hibernate data": {"database-primary\trunning"},
		"migrate default/w": {"default/web\tasleep"},
		"migrate web ":      nil, "cordon n": {"node-1"}, "migrate web --to ": {"node-1"}, "wake web --on no": {"node-1"},
		"migrate --mode ": {"auto", "live", "cold"}, "ps -o w": {"wide"}, "ps --output j": {"json"},
		"snapshot inspect " + hex[:3]: {hex + "\tdefault/web"}, "snapshot rm sha256:0f": {someDigest + "\tdefault/web"},
		"snapshot diff " + hex + " " + hex[:2]: {hex + "\tdefault/web"},
		"abort " + someOperation[:4]:           {someOperation + "\tdefault/web"},
		"stop web w":                           {"web\tasleep"},
		"template rm sha256:0":                 {someDigest + "\timage"},
		"hibern":                               {"hibernate"},
	} {
		words := strings.Split(line, " ")
		for _, s := range []string{socket, none} {
			var out, log strings.Builder
			args := slices.Concat([]string{"__complete"}, words[:1], []string{"-n", "default", "--socket", s}, words[1:])
			if len(words) == 1 {
				args = []string{"__complete", words[0]}
			}
			if code := Run(t.Context(), args, &out, &log); code != 0 {
				t.Fatalf("%s: exit code %d: %s", line, code, &log)
			}
			got := strings.Split(out.String(), "\n")
			got = got[:slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, ":") })]
			if len(words) == 1 { // with what the verb does
				got = []string{strings.SplitN(got[0], "\t", 2)[0]}
			}
			isWord := len(want) > 0 && !strings.Contains(want[0], "\t") && want[0] != "node-1"
			if s == none && !isWord {
				want = nil
			}
			if len(got) != len(want) || len(got) > 0 && !slices.Equal(got, want) {
				t.Errorf("%q: %q, want %q", line, got, want)
			}
		}
	}
}

// A tab completes the name of a VM in each shell that Debian has.
func TestShells(t *testing.T) {
	socket := daemonOf(t)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := fmt.Sprintf("#!/bin/sh\nexec env GODWIT_CLI=1 %s \"$@\"\n", self)
	if err := os.WriteFile(filepath.Join(dir, "godwit"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	line := "godwit hibernate --socket " + socket + " -n default databa"
	for shell, script := range map[string]string{
		"bash": "source /usr/share/bash-completion/bash_completion\nsource <(godwit completion bash)\n" +
			"COMP_LINE='" + line + "'; COMP_POINT=${#COMP_LINE}; COMP_WORDS=($COMP_LINE)\n" +
			"COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
			"COMP_TYPE=9; __start_godwit; printf '%s\\n' \"${COMPREPLY[@]}\"\n",
		"fish": "godwit completion fish | source; complete -C '" + line + "'\n",
	} {
		t.Run(shell, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), needs(t, shell), "-c", script)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "database-primary") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	t.Run("zsh", func(t *testing.T) { completesInZsh(t, dir, line) })
}

// completesInZsh types into an interactive zsh.
func completesInZsh(t *testing.T, dir, line string) {
	term := ptytest.Open(t, 200)
	cmd := exec.CommandContext(t.Context(), needs(t, "zsh"), "-f", "-i")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "TERM=dumb", "PS1=$ ")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.TTY, term.TTY, term.TTY
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for _, step := range []struct{ typed, shows string }{
		{"autoload -U compinit && compinit -u -D && source <(godwit completion zsh) && echo rea''dy\n", "ready"},
		{line + "\t", "database-primary"},
	} {
		if err := term.Type(step.typed); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		for ; !strings.Contains(term.Now(), step.shows); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %q in %q", step.shows, term.Now())
			}
		}
	}
}

// needs is a shell of tools/setup.sh.
func needs(t *testing.T, shell string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%v: tools/setup.sh installs it", err)
	}
	return path
}
