package screen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
)

// Document writes a value as one document of JSON or YAML. A message of the API becomes what Encode says.
func Document(w io.Writer, format Format, v any) error {
	data, err := Encode(v)
	if err == nil && format == YAML {
		data, err = toYAML(data)
	}
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	_, err = w.Write(data)
	return err
}

// Encode is a value as indented JSON with a newline. Keys are camelCase, numbers are numbers, times are strings of
// RFC 3339, and words of an enumeration are camelCase too. All fields of a message are there: null stands for what
// is not known or not set.
func Encode(v any) ([]byte, error) {
	var compact bytes.Buffer
	if m, ok := v.(proto.Message); ok {
		if err := encodeMessage(&compact, m.ProtoReflect()); err != nil {
			return nil, err
		}
	} else {
		e := json.NewEncoder(&compact)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(compact.Bytes()), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// toYAML keeps the order of the keys. JSON is a part of YAML: its nodes need another style only.
func toYAML(data []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	block(&doc)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

// block has a node written in lines, and quotes only where the text would be read as something else. An empty list
// or map has no other style.
func block(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// Each writes one document of a series: a line of JSON, or a document of YAML that begins with ---.
func Each(w io.Writer, format Format, v any) error {
	data, err := Encode(v)
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if format == YAML {
		if data, err = toYAML(data); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
		_, err = w.Write(append([]byte("---\n"), data...))
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, data); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}
