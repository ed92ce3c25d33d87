// Package screen prints what verbs have found: tables that fit a terminal, documents for programs, and names alone.
package screen

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/visible"
)

// Format is a value of the flag --output.
type Format string

// The formats of a result. Wide is Text with all columns, Name is one name in each line.
const (
	Text Format = "text"
	Wide Format = "wide"
	JSON Format = "json"
	YAML Format = "yaml"
	Name Format = "name"
)

// Formats are all values of --output, in the order of the help.
var Formats = []string{string(Text), string(Wide), string(JSON), string(YAML), string(Name)}

// Check refuses what is no format.
func (f Format) Check() error {
	if slices.Contains(Formats, string(f)) {
		return nil
	}
	return fmt.Errorf("--output %q is not known. Write one of %s: %w", string(f), strings.Join(Formats, ", "),
		errdefs.ErrInvalidArgument)
}

// Machine reports whether a program reads the result: notes and progress then stay away from it.
func (f Format) Machine() bool { return f == JSON || f == YAML }

// Result is what one verb has done or found.
type Result struct {
	Value any                   // the document: a message of the API, or a Go value with JSON tags
	Names []string              // what the verb was about, for -o name: each can be an argument again
	Text  func(io.Writer) error // the result in words
}

// Print writes the result in a format.
func (r Result) Print(w io.Writer, format Format) error {
	switch format {
	case JSON, YAML:
		return Document(w, format, r.Value)
	case Name:
		return Lines(w, r.Names)
	}
	return r.Text(w)
}

// Lines writes each string in a line of its own.
func Lines(w io.Writer, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, visible.Line(l)); err != nil {
			return err
		}
	}
	return nil
}
