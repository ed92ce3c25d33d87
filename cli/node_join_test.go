package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A join token comes from a file or from standard input, where no other user of the host reads it. As an argument it
// still works, with a warning. What is no token is refused by the flag that named it, before anything is asked of a
// controller.
func TestJoinToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		args   []string
		stdin  string
		token  string
		says   string
		warned bool
	}{
		"file":     {[]string{"--token-file", file("token", "secret\n")}, "", "secret", "", false},
		"stdin":    {[]string{"--token-file", "-"}, "secret", "secret", "", false},
		"argument": {[]string{"secret"}, "", "secret", "", true},
		"both":     {[]string{"secret", "--token-file", "-"}, "secret", "", "both there", false},
		"none":     {nil, "secret", "", "--token-file is missing", false},
		"no file": {[]string{"--token-file", filepath.Join(dir, "none")}, "", "", "--token-file " + filepath.Join(dir,
			"none"), false},
		"empty":     {[]string{"--token-file", file("empty", "\n")}, "", "", "no token", false},
		"two lines": {[]string{"--token-file", "-"}, "one\ntwo\n", "", "no token", false},
		"long":      {[]string{"--token-file", "-"}, strings.Repeat("x", maxToken+1), "", "no token", false},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			opts := &options{}
			cmd := newNodeJoin(opts)
			cmd.SetIn(strings.NewReader(c.stdin))
			cmd.SetErr(&stderr)
			if err := cmd.ParseFlags(c.args); err != nil {
				t.Fatal(err)
			}
			given, _ := cmd.Flags().GetString("token-file")
			token, err := opts.joinToken(cmd, cmd.Flags().Args(), given)
			if token != c.token || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("token %q, %v", token, err)
			}
			if warned := strings.Contains(stderr.String(), "--token-file"); warned != c.warned {
				t.Errorf("warned: %v (%s)", warned, &stderr)
			}
			if strings.Contains(stderr.String(), "secret") {
				t.Error("the token is printed")
			}
		})
	}
}
