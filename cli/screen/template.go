package screen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"

	"github.com/containerd/errdefs"
)

// Template is the value of a flag --format: a Go template for one item.
type Template struct{ parsed *template.Template }

// ParseTemplate reads a template. The text json stands for a whole document in a line.
func ParseTemplate(text string) (*Template, error) {
	if text == "json" {
		text = "{{json .}}"
	}
	t, err := template.New("--format").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			data, err := json.Marshal(v)
			return string(data), err
		},
		"join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper,
	}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--format: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return &Template{t}, nil
}

// Write writes a line for an item.
func (t *Template) Write(w io.Writer, item Item) error {
	doc, err := generic(item)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := t.parsed.Execute(&line, doc); err != nil {
		return wrongKey(err, doc)
	}
	_, err = fmt.Fprintln(w, line.String())
	return err
}

// atPath is where text/template says that it has failed: at a path of keys.
var atPath = regexp.MustCompile(`at <((?:\.[A-Za-z0-9_]+)+)>: (.*)$`)

// wrongKey names the first key of a path that the document does not have, and those that stand in its place.
func wrongKey(err error, doc map[string]any) error {
	at := atPath.FindStringSubmatch(err.Error())
	if at == nil {
		return fmt.Errorf("--format: %w. The keys are: %s: %w", err, keys(doc), errdefs.ErrInvalidArgument)
	}
	path := strings.Split(at[1][1:], ".")
	for i, key := range path {
		next, found := doc[key]
		if !found {
			of := ""
			if i > 0 {
				of = " of " + strings.Join(path[:i], ".")
			}
			return fmt.Errorf("--format: there is no key %q%s. The keys%s are: %s: %w", key, of, of, keys(doc),
				errdefs.ErrInvalidArgument)
		}
		below, isMap := next.(map[string]any)
		if !isMap && i+1 < len(path) {
			return fmt.Errorf("--format: %s has no keys below it: %w", strings.Join(path[:i+1], "."),
				errdefs.ErrInvalidArgument)
		}
		doc = below
	}
	return fmt.Errorf("--format: %s: %s: %w", at[1], at[2], errdefs.ErrInvalidArgument)
}
