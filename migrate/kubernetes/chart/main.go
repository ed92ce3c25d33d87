// Command chart makes the Helm chart of godwit. Its source is the kustomization: what kubectl apply -k installs is what
// the chart installs, and the defaults of its values are read there.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	source := flag.String("source", "../../packaging/kubernetes", "directory with default, monitoring and chart")
	out := flag.String("out", "../../out/chart/godwit", "directory of the chart, made anew")
	version := flag.String("version", "", "version of godwit")
	flag.Parse()
	if err := write(*source, *out, *version); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// write makes the chart in out: chart/ of the source as it is, and what is made.
func write(source, out, version string) error {
	own := filepath.Join(source, "chart")
	if _, err := os.Stat(own); err != nil { // before anything is removed
		return fmt.Errorf("-source %s: run this in migrate/kubernetes, or name packaging/kubernetes: %w", source, err)
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.CopyFS(out, os.DirFS(own)); err != nil {
		return fmt.Errorf("copy %s to %s: %w", own, out, err)
	}
	c := chart{defaults: map[string]any{}}
	files := map[string]string{"Chart.yaml": header(version)}
	for dir, wrap := range map[string]string{"default": "", "monitoring": "monitoring.enabled",
		"agent-sandbox": "agentSandbox.enabled"} {
		objects, err := build(filepath.Join(source, dir))
		if err != nil {
			return err
		}
		for _, o := range objects {
			name, text, err := c.template(o)
			if err != nil {
				return err
			}
			if wrap != "" {
				text = "{{- if .Values." + wrap + " }}\n" + text + "{{- end }}\n"
			}
			files[filepath.Join("templates", name)] = text
		}
	}
	var err error
	if files["values.yaml"], err = c.values(); err != nil {
		return err
	}
	for name, text := range files {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// build answers the objects of a kustomization.
func build(dir string) (all []object, err error) {
	options := krusty.MakeDefaultOptions()
	made, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("build %s: %s: %w", dir, r.GetName(), err)
		}
		o := object{}
		if err := yaml.Unmarshal(text, &o); err != nil {
			return nil, fmt.Errorf("build %s: %s: %w", dir, r.GetName(), err)
		}
		all = append(all, o)
	}
	return all, nil
}
