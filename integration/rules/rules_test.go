// Package rules tests what holds for the whole repository: which package may import
// which, how text files look, what the documents must name.
package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "godwit.dev/godwit"

// The nested module of Kubernetes is a layer of its own: nothing outside it imports it. Its tests stand on apitest.
const (
	kubernetes = "migrate/kubernetes"
	apitest    = kubernetes + "/apitest"
)

// root is the top of the work tree; a test runs in its package's directory.
const root = "../.."

// mayImport lists, for each layer, the other layers it may import, and why not more.
var mayImport = map[string]struct {
	layers []string
	reason string
}{
	"internal": {nil, "what knows nothing of VMs depends on nothing of ours"},
	"api":      {nil, "contracts depend on nothing of ours"},
	"vmm":      {[]string{"api"}, "a VMM knows neither networks nor snapshots; the shim joins them"},
	"network":  {[]string{"api"}, "a network knows neither VMMs nor snapshots"},
	"snapshot": {[]string{"api"}, "a snapshot is made of what it is given"},
	"guest":    {[]string{"api"}, "the agent's two halves meet in its protocol alone"},
	"shim": {[]string{"vmm", "network", "snapshot", "guest", "api"},
		"a shim knows its one VM and asks the record through a client"},
	"migrate": {[]string{"network", "api"},
		"the hand-over declares the interfaces it needs and daemon fills them; a task's namespace alone is made by network"},
	kubernetes: {[]string{"migrate", "snapshot", "packaging", "api"},
		"the operator is a controller of its own: it knows records, snapshots and its schemas, and no VM of a node"},
	apitest: {[]string{kubernetes, "integration"}, "what tests stand on"},
	"daemon": {[]string{"shim", "migrate", "network", "snapshot", "api"},
		"a node's daemon joins the hand-over with snapshots and with the programs of the shim"},
	"client":    {[]string{"api"}, "other programs import it: it asks daemons and containerd, and decides nothing"},
	"packaging": {nil, "files that an installation puts down, and no program"},
	"cli": {[]string{"client", "migrate", "vmm", "network", "snapshot", "shim", "packaging", "api"},
		"the command line asks through client; doctor looks at the host by the packages that will use it"},
	"cmd": {[]string{"cli", "daemon", "shim", "migrate", "vmm", "network", "snapshot", "guest", "api"}, "wiring"},
	"integration": {[]string{"cli", "client", "daemon", "shim", "migrate", "vmm", "network", "snapshot", "guest", "api"},
		"tests may join what they like, but run programs as users do"},
}

type goPackage struct {
	ImportPath   string
	Dir          string
	Name         string
	GoFiles      []string
	CgoFiles     []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	return append(packagesIn(t, root), packagesIn(t, filepath.Join(root, kubernetes))...)
}

// packagesIn lists those of one module.
func packagesIn(t *testing.T, dir string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-tags", "integration",
		"-json=ImportPath,Dir,Name,GoFiles,CgoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []goPackage
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatalf("go list names no package in %s", dir)
	}
	return pkgs
}

func layer(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	for _, nested := range []string{apitest, kubernetes} {
		if rest == nested || strings.HasPrefix(rest, nested+"/") {
			return nested
		}
	}
	l, _, _ := strings.Cut(rest, "/")
	return l
}

// allowed reports whether a package of layer from may import one of layer to.
func allowed(from, to string) bool {
	return to == "" || to == "internal" || from == to && from != "cmd" || slices.Contains(mayImport[from].layers, to)
}

func TestImportArrows(t *testing.T) {
	for _, p := range packages(t) {
		from := layer(p.ImportPath)
		rule, known := mayImport[from]
		if !known {
			t.Errorf("%s: layer %q is not in the table", p.ImportPath, from)
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			test := layer(imp) == apitest && !slices.Contains(p.Imports, imp)
			if imp != p.ImportPath && !test && !allowed(from, layer(imp)) {
				t.Errorf("%s imports %s: %s", p.ImportPath, imp, rule.reason)
			}
		}
	}
}

// The table itself: the arrows the design forbids must be forbidden.
func TestImportArrowsForbid(t *testing.T) {
	for _, arrow := range [][2]string{
		{"vmm", "network"}, {"vmm", "snapshot"}, {"network", "vmm"}, {"network", "snapshot"},
		{"snapshot", "vmm"}, {"snapshot", "network"}, {"migrate", "shim"}, {"migrate", "vmm"},
		{"shim", "migrate"}, {"shim", "cmd"}, {"api", "shim"}, {"cmd", "cmd"}, {"guest", "vmm"}, {"internal", "api"},
		{"migrate", "daemon"}, {"shim", "daemon"}, {"daemon", "cmd"},
		{"client", "cli"}, {"client", "migrate"}, {"cli", "daemon"}, {"cli", "guest"},
		{kubernetes, "shim"}, {kubernetes, "vmm"}, {kubernetes, "network"}, {kubernetes, "guest"}, {kubernetes, apitest},
		{"migrate", kubernetes}, {"daemon", kubernetes}, {"cmd", kubernetes}, {"integration", kubernetes},
	} {
		if allowed(arrow[0], arrow[1]) {
			t.Errorf("%s may import %s", arrow[0], arrow[1])
		}
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		files := slices.Concat(p.GoFiles, p.CgoFiles)
		if len(files) == 0 {
			continue // tests only
		}
		var with []string
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil && !strings.HasPrefix(f.Doc.Text(), "Code generated") && !generated(f.Doc.Text()) {
				with = append(with, name)
			}
		}
		if isGenerated(t, p.Dir, files) {
			continue
		}
		if len(with) != 1 {
			t.Errorf("%s: package comment in %v, want exactly one file", p.ImportPath, with)
		}
	}
}

// generated recognises the comment that protoc copies from the .proto file.
func generated(doc string) bool {
	return strings.Contains(doc, "godwit.") && strings.Contains(doc, ".v1 is")
}

// isGenerated reports whether a tool has written all of the files.
func isGenerated(t *testing.T, dir string, files []string) bool {
	return !slices.ContainsFunc(files, func(name string) bool {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return !byTool(data)
	})
}

// byTool reports whether a tool has written a file. It says so first, or after what the file is built for.
func byTool(data []byte) bool {
	if first, rest, ok := bytes.Cut(data, []byte("\n\n")); ok && bytes.HasPrefix(first, []byte("//go:build ")) {
		data = rest
	}
	return bytes.HasPrefix(data, []byte("// Code generated "))
}

func TestPackageNames(t *testing.T) {
	banned := []string{"util", "utils", "common", "types", "internal", "helpers", "misc"}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/internal/") // the folder of what all layers may import
		for _, element := range append(strings.Split(path, "/"), p.Name) {
			if slices.Contains(banned, element) {
				t.Errorf("%s: %q says nothing about what is in it", p.ImportPath, element)
			}
		}
	}
}

// tracked answers the repository's text files: what git knows or would add.
func tracked(t *testing.T) map[string][]byte {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := map[string][]byte{}
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if !binary(name, data) {
			files[name] = data
		}
	}
	if len(files) == 0 {
		t.Fatal("git names no file")
	}
	return files
}

// binary tells golden snapshots, fuzz inputs and pictures from text.
func binary(name string, data []byte) bool {
	return strings.HasSuffix(name, ".png") || strings.Contains(name, "testdata/") &&
		(bytes.IndexByte(data, 0) >= 0 || strings.Contains(name, "testdata/fuzz/"))
}

// Comments and documents, and all else that is text. Go's assembler wants a dot of its own in the name of a function.
func TestPlainASCII(t *testing.T) {
	for name, data := range tracked(t) {
		if strings.HasSuffix(name, ".s") {
			data = bytes.ReplaceAll(data, []byte("\u00b7"), nil)
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if at := bytes.IndexFunc(line, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }); at >= 0 {
				t.Errorf("%s:%d:%d: %q is not plain ASCII", name, i+1, at+1, line)
				break
			}
		}
	}
}

// A file that is longer than a few screens holds more than one thing.
func TestFilesAreShort(t *testing.T) {
	const most = 400
	for name, data := range tracked(t) {
		if n := bytes.Count(data, []byte("\n")); strings.HasSuffix(name, ".go") && n > most && !byTool(data) {
			t.Errorf("%s has %d lines, %d are the most", name, n, most)
		}
	}
}

// A registry's host or a path of one machine makes a test or a document true for its
// author only.
func TestNoHostsNoMachinePaths(t *testing.T) {
	banned := []string{
		"docker" + ".io", "ghcr" + ".io", "quay" + ".io", "gcr" + ".io", "registry" + ".k8s.io",
		"mcr.microsoft" + ".com", "public.ecr" + ".aws", "/work" + "/main", "/work" + "/shared", "/tmp" + "/setup",
	}
	for name, data := range tracked(t) {
		if strings.HasSuffix(name, "go.sum") || strings.HasSuffix(name, "go.mod") {
			continue // module paths
		}
		for _, b := range banned {
			if bytes.Contains(data, []byte(b)) {
				t.Errorf("%s names %s", name, b)
			}
		}
	}
}

func TestDocsNameEveryMakeTarget(t *testing.T) {
	files := tracked(t)
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllSubmatch(files["Makefile"], -1)
	if len(targets) < 15 {
		t.Fatalf("the Makefile has %d documented targets, want at least 15", len(targets))
	}
	docs := string(files["README.md"]) + string(files["docs/how-to/install.md"]) + string(files["docs/dev/testing.md"])
	for _, m := range targets {
		if !strings.Contains(docs, "make "+string(m[1])) {
			t.Errorf("neither README.md, docs/how-to/install.md nor docs/dev/testing.md names `make %s`", m[1])
		}
	}
}

// The map of the repository and the page about tests have every package, by its path or by its last element.
func TestMapHasEveryPackage(t *testing.T) {
	files := tracked(t)
	page := string(files["docs/dev/code-map.md"]) + string(files["docs/dev/testing.md"])
	for _, p := range packages(t) {
		files := slices.Concat(p.GoFiles, p.CgoFiles)
		if len(files) > 0 && isGenerated(t, p.Dir, files) {
			continue
		}
		path := strings.TrimSuffix(strings.TrimPrefix(p.ImportPath, module+"/"), "/v1")
		if !strings.Contains(page, "`"+filepath.Base(path)+"`") &&
			!regexp.MustCompile("(?m)(^|`)"+regexp.QuoteMeta(path)+"(`| )").MatchString(page) {
			t.Errorf("neither docs/dev/code-map.md nor docs/dev/testing.md names %s", path)
		}
	}
}
