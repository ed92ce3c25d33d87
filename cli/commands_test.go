package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```[a-z]*\\n(.*?)^ *```$")
	codeSpan   = regexp.MustCompile("`(godwit [^`]+)`")
	blockLine  = regexp.MustCompile(`(?m)^\s*(?:\$ |# )?(?:sudo )?(godwit [a-z-].*)$`)
	shellTail  = regexp.MustCompile(`\s*(?:#|\||<|>|&&|;).*$`)
	notCommand = []string{"godwit seal v1", "godwit seal key id v1", "godwit operation ID"} // texts of formats
	// verbs that have verbs below them, and arguments
	withOwnArg = []string{"golden", "completion"}
)

// documents answers the pages that users read.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, top := range []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "docs"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
				return err
			}
			data, err := os.ReadFile(path)
			all[strings.TrimPrefix(path, "../")] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Each command line of godwit in a block of code parses: the verb is there, and its flags
// and arguments are taken.
func TestCommandsOfDocs(t *testing.T) {
	seen := 0
	for page, text := range documents(t) {
		for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
			for _, m := range blockLine.FindAllStringSubmatch(block[1], -1) {
				line := strings.TrimSpace(shellTail.ReplaceAllString(m[1], ""))
				seen++
				cmd, args, err := newRoot(&options{}).Find(strings.Fields(line)[1:])
				if err == nil {
					err = cmd.ParseFlags(args)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: %s: %v", page, line, err)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("the pages have %d command lines", seen)
	}
}

// Each command that the prose names has a verb that exists, and flags that this verb has.
// Brackets, alternatives and words in capitals may stand for arguments there.
func TestVerbsOfDocs(t *testing.T) {
	seen := 0
	for page, text := range documents(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			if slices.Contains(notCommand, m[1]) {
				continue
			}
			seen++
			words := strings.Fields(strings.NewReplacer("[", "", "]", "", `\|`, "|", "'", "").Replace(m[1]))[1:]
			cmd, args, err := newRoot(&options{}).Find(words)
			if err != nil || cmd.Parent() == nil || cmd.HasSubCommands() && !slices.Contains(withOwnArg, cmd.Name()) &&
				len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				t.Errorf("%s: `%s`: there is no such verb (%v)", page, m[1], err)
				continue
			}
			for _, word := range args {
				name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
				if !strings.HasPrefix(word, "-") || name == "" {
					continue
				}
				known := cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
				if len(name) == 1 {
					known = cmd.Flags().ShorthandLookup(name) != nil || cmd.InheritedFlags().ShorthandLookup(name) != nil
				}
				if !known {
					t.Errorf("%s: `%s`: %s has no flag %s", page, m[1], cmd.CommandPath(), word)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("the pages name %d commands", seen)
	}
}
