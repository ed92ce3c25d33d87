package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"godwit.dev/godwit/api/spec"
)

// containerdConfig is where containerd reads its configuration by default.
const containerdConfig = "/etc/containerd/config.toml"

// checkRuntimePath looks for runtime_path of the runtime in containerd's files. With it containerd finds the shim by
// that path, and cannot load containers of a pod when it starts again: it drops them without a call.
func checkRuntimePath(file, runtime string) finding {
	f := finding{Check: "runtime_path", OK: true, Detail: "not set in " + file}
	handlers, err := readHandlers(file, runtime)
	if err != nil {
		return unread(f, file, err)
	}
	for _, h := range handlers {
		if path, _ := h.table["runtime_path"].(string); path != "" {
			f.OK, f.Detail = false, "set in "+h.file
			f.Remedy = "remove it, put the shim's directory into containerd's PATH and restart containerd: with it a " +
				"restart of containerd loses containers of pods"
			break
		}
	}
	return f
}

// snapshotters whose mounts become disks of a VM.
var snapshotters = []string{"overlayfs", "erofs", "native", "blockfile"}

// checkHandler looks at what containerd's CRI does with pods of the runtime. Without our annotations it drops them
// without a word. A privileged container gets all devices of the host, which no VM can have.
func checkHandler(file, runtime string) finding {
	f := finding{Check: "pods", OK: true, Detail: "containerd has no runtime handler for them in " + file}
	handlers, err := readHandlers(file, runtime)
	if err != nil {
		return unread(f, file, err)
	}
	if len(handlers) == 0 {
		return f
	}
	merged := map[string]any{} // a later file counts more
	for _, h := range handlers {
		maps.Copy(merged, h.table)
	}
	var missing []string
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		if !passes(merged[key]) {
			missing = append(missing, key+" = ['"+spec.AnnotationPrefix+"*']")
		}
	}
	if without, _ := merged["privileged_without_host_devices"].(bool); !without {
		missing = append(missing, "privileged_without_host_devices = true")
	}
	if name, _ := merged["snapshotter"].(string); name != "" && !slices.Contains(snapshotters, name) {
		missing = append(missing, "snapshotter = '"+snapshotters[0]+"' instead of '"+name+"'")
	}
	last := handlers[len(handlers)-1].file
	f.Detail = "the runtime handler in " + last + " is as godwit needs it"
	if len(missing) > 0 {
		f.OK, f.Detail = false, "the runtime handler in "+last+" lacks "+strings.Join(missing, ", ")
		f.Remedy = "set them in that file, and restart containerd"
	}
	return f
}

// passes reports whether a list of patterns lets through all annotations that godwit reads.
func passes(list any) bool {
	patterns, _ := list.([]any)
	return slices.ContainsFunc(patterns, func(p any) bool {
		text, _ := p.(string)
		fits, err := path.Match(text, spec.AnnotationPrefix+"memory")
		return fits && err == nil && strings.HasSuffix(text, "*")
	})
}

// unread is what a check says when it could not look.
func unread(f finding, file string, err error) finding {
	if errors.Is(err, fs.ErrNotExist) {
		f.Detail = "there is no " + file
		return f
	}
	f.OK, f.Detail, f.Remedy = false, err.Error(), "make the file readable and valid: what it says is not known"
	return f
}

// handler is a table of one of containerd's files that names the runtime.
type handler struct {
	file  string
	table map[string]any
}

// readHandlers reads file and the files that it imports, in the order in which containerd does.
func readHandlers(file, runtime string) (found []handler, err error) {
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
		for _, table := range tablesOf(top, runtime) {
			found = append(found, handler{files[i], table})
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

// tablesOf looks in every table, as their place differs between versions of the file.
func tablesOf(v any, runtime string) (found []map[string]any) {
	table, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	if kind, _ := table["runtime_type"].(string); kind == runtime {
		found = append(found, table)
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		found = append(found, tablesOf(table[key], runtime)...)
	}
	return found
}
