package screen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
		return fmt.Errorf("--format: %w. The keys are: %s: %w", err, keys(doc), errdefs.ErrInvalidArgument)
	}
	_, err = fmt.Fprintln(w, line.String())
	return err
}
