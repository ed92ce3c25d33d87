package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
)

// The table of templates says of each kind what it is of, and no size or time that is not known.
func TestPrintTemplates(t *testing.T) {
	var out bytes.Buffer
	age := screen.Since(1e18)
	list := templateList(&nodev1.TemplatesResponse{Templates: []*nodev1.TemplateInfo{
		{Kind: bootKind, Name: "aa", Vmm: "qemu", Memory: 512 << 20, Vcpus: 2, Disks: 2, Nics: 1, Bytes: 74 << 20,
			CreatedUnixNano: 1e18, UsedUnixNano: time.Now().Add(-time.Hour).UnixNano()},
		{Kind: imageKind, Name: "sha256:1", Image: "web:1\x1b[2J", Vmm: "qemu", Memory: 512 << 20, Vcpus: 1, Bytes: 20 << 20,
			CreatedUnixNano: 1e18},
	}})
	if err := list.Print(&out, screen.Wide, screen.ListFlags{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"NAME KIND IMAGE MEMORY SIZE AGE USED VCPUS DEVICES VMM WHOLE-NAME",
		"aa boot - 512MiB 74MiB " + age + " 60m ago 2 2 disks, 1 NICs qemu aa",
		`1 image web:1\x1b[2J 512MiB 20MiB ` + age + ` - 1 - qemu sha256:1`,
	} {
		if got := strings.Join(strings.Fields(strings.Split(out.String(), "\n")[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}

// What is made is said with its name, what it is of, and what it took.
func TestPrintMade(t *testing.T) {
	boot := &nodev1.TemplateInfo{Kind: bootKind, Name: "aa", Memory: 512 << 20, Vcpus: 1, Disks: 2, Nics: 1,
		Bytes: 74 << 20}
	for want, resp := range map[string]*nodev1.TemplateMakeResponse{
		"aa template of boot, 512MiB, 1 vCPUs, 2 disks, 1 NICs (made in 4.5s, 74MiB stored)\n": {Template: boot,
			TookMs: 4510},
		"aa template of boot, 512MiB, 1 vCPUs, 2 disks, 1 NICs (it was there)\n": {Template: boot,
			Existed: true},
		"sha256:1 template of image web:1 (ready after 2s, 20MiB stored of 90MiB)\n": {
			Template: &nodev1.TemplateInfo{Kind: imageKind, Name: "sha256:1", Image: "web:1"}, ReadyMs: 2000,
			PushedBytes: 20 << 20, ResidentBytes: 90 << 20,
		},
	} {
		var out bytes.Buffer
		if err := madeText(resp)(&out); err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
	}
}

// The verb of the release before says its new name once, as text or as a document, and is not in the help.
func TestGoldenIsRenamed(t *testing.T) {
	for args, now := range map[string]string{
		"golden i": "godwit template make --image", "golden ls": "godwit template ls --image",
		"golden rm i": "godwit template rm --image",
	} {
		for _, output := range []string{"text", "json"} {
			var stdout, stderr bytes.Buffer
			Run(context.Background(), append([]string{"--socket", t.TempDir() + "/none", "-o", output}, strings.Fields(args)...),
				&stdout, &stderr)
			if n := strings.Count(stderr.String(), now); n != 1 {
				t.Errorf("%s -o %s says %d times what it is called now: %s", args, output, n, &stderr)
			}
			if first, _, _ := strings.Cut(stderr.String(), "\n"); output == "json" && !json.Valid([]byte(first)) {
				t.Errorf("%s: %q is no document", args, first)
			}
		}
	}
	visible := slices.ContainsFunc(newRoot(&options{}).Commands(), func(c *cobra.Command) bool {
		return c.Name() == "golden" && !c.Hidden
	})
	if visible {
		t.Error("the help names a verb of the release before")
	}
}

// Doctor warns of each key that a file has by the name of the release before, with the new one.
func TestDoctorNamesRenamedKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("[template]\nmax = 3\nafter = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := map[string]int{}
	for _, f := range diagnose(t.Context(), &options{config: path, socket: filepath.Join(t.TempDir(), "none")}) {
		if f.Check == "configuration" && !f.OK && !f.Fatal {
			said[f.Detail+": "+f.Remedy]++
		}
	}
	for _, key := range []string{"max", "after"} {
		if n := said[path+" has template.boot."+key+" by its old name: rename template."+key+
			", which the next release does not know"]; n != 1 {
			t.Errorf("template.%s: %d warnings in %v", key, n, said)
		}
	}
}
