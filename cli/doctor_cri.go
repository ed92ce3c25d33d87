package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// containerdConfig is where containerd reads its configuration by default.
const containerdConfig = "/etc/containerd/config.toml"

// checkRuntimePath looks for runtime_path of the runtime in containerd's files. With it containerd finds the shim by
// that path, and cannot load containers of a pod when it starts again: it drops them without a call.
func checkRuntimePath(file, runtime string) finding {
	f := finding{Check: "runtime_path", OK: true, Detail: "not set in " + file}
	found, err := runtimePaths(file, runtime)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Detail = "there is no " + file
	case err != nil:
		f.OK, f.Detail, f.Remedy = false, err.Error(), "make the file readable and valid: what it says is not known"
	case len(found) > 0:
		f.OK, f.Detail = false, fmt.Sprintf("set in %s", found[0])
		f.Remedy = "remove it, put the shim's directory into containerd's PATH and restart containerd: with it a " +
			"restart of containerd loses containers of pods"
	}
	return f
}

// runtimePaths are the files that set it, of file and those that it imports.
func runtimePaths(file, runtime string) (found []string, err error) {
	files := []string{file}
	for i := 0; i < len(files); i++ {
		data, err := os.ReadFile(files[i])
		if err != nil {
			return nil, err
		}
		var top map[string]any
		if err := toml.Unmarshal(data, &top); err != nil {
			return nil, fmt.Errorf("%s: %w", files[i], err)
		}
		if setsRuntimePath(top, runtime) {
			found = append(found, files[i])
		}
		patterns, _ := top["imports"].([]any)
		for _, p := range patterns {
			pattern, _ := p.(string)
			if i > 0 || pattern == "" { // one level: files that import each other end too
				continue
			}
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			more, err := matching(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: imports %q: %w", files[i], pattern, err)
			}
			files = append(files, more...)
		}
	}
	return found, nil
}

// matching are the files whose last name fits a pattern. A directory that cannot be read is an error.
func matching(pattern string) (files []string, err error) {
	dir, last := filepath.Split(pattern)
	if strings.ContainsAny(dir, "*?[") {
		return nil, errors.New("a pattern of directories is not looked at")
	}
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range all {
		fits, bad := filepath.Match(last, e.Name())
		if bad != nil {
			return nil, bad
		}
		if fits {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, err
}

// setsRuntimePath looks for it in every table, as its place differs between versions of the file.
func setsRuntimePath(v any, runtime string) bool {
	table, ok := v.(map[string]any)
	if !ok {
		return false
	}
	path, _ := table["runtime_path"].(string)
	if kind, _ := table["runtime_type"].(string); kind == runtime && path != "" {
		return true
	}
	for _, inner := range table {
		if setsRuntimePath(inner, runtime) {
			return true
		}
	}
	return false
}
