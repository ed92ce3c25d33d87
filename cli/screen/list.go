package screen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/pflag"
)

// ListFlags are those of every verb that lists.
type ListFlags struct {
	Quiet   bool
	Filters []string
	Format  string
}

// Add has a verb take them.
func (f *ListFlags) Add(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "one id in each line, and nothing else")
	flags.StringArrayVarP(&f.Filters, "filter", "f", nil,
		"KEY=VALUE: only what has this value; KEY is a key of -o json, such as owner.node, or a column's title")
	flags.StringVar(&f.Format, "format", "", "Go template for each, with the keys of -o json, such as '{{.status}}'")
}

// Item is one of a list.
type Item struct {
	Value any // as in Result
	Name  string
	ID    string // for -q
	Row   []string
	Keys  map[string]string // for --filter and --format, over those of the document
}

// Values are those of items, which all have this type.
func Values[T any](items []Item) []T {
	return fields(items, func(i Item) T { return i.Value.(T) })
}

// List is what a verb lists.
type List struct {
	Columns []Column
	Items   []Item
	// Whole is the document of -o json and yaml with the items that a filter has left.
	Whole func(left []Item) any
}

// Print writes the list in a format, as the flags say.
func (l List) Print(w io.Writer, format Format, f ListFlags) error {
	items, err := l.filter(f.Filters)
	if err != nil {
		return err
	}
	switch {
	case f.Format != "":
		t, err := ParseTemplate(f.Format)
		for i := 0; err == nil && i < len(items); i++ {
			err = t.Write(w, items[i])
		}
		return err
	case f.Quiet:
		return Lines(w, fields(items, func(i Item) string { return i.ID }))
	case format == Name:
		return Lines(w, fields(items, func(i Item) string { return i.Name }))
	case format.Machine():
		return Document(w, format, l.Whole(items))
	}
	return Table{Columns: l.Columns, Rows: fields(items, func(i Item) []string { return i.Row })}.Write(w, format == Wide)
}

func fields[T any](items []Item, of func(Item) T) []T {
	all := make([]T, 0, len(items))
	for _, i := range items {
		all = append(all, of(i))
	}
	return all
}

// filter leaves what has all the values. A key that nothing in the list has is a mistake.
func (l List) filter(filters []string) ([]Item, error) {
	left := l.Items
	for _, f := range filters {
		name, value, found := strings.Cut(f, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("--filter %q: write KEY=VALUE: %w", f, errdefs.ErrInvalidArgument)
		}
		var kept []Item
		for _, item := range left {
			has, err := l.value(item, name)
			if err != nil {
				return nil, err
			}
			if has == value {
				kept = append(kept, item)
			}
		}
		left = kept
	}
	return left, nil
}

// value is what an item has under a key: a path of keys, or a column's title in any case.
func (l List) value(item Item, name string) (string, error) {
	doc, err := generic(item)
	if err != nil {
		return "", err
	}
	if v, found := at(doc, strings.Split(name, ".")); found {
		return v, nil
	}
	for i, c := range l.Columns {
		if strings.EqualFold(c.Title, name) && i < len(item.Row) {
			return item.Row[i], nil
		}
	}
	return "", fmt.Errorf("--filter %s: there is no such key. The keys are: %s: %w", name, keys(doc),
		errdefs.ErrInvalidArgument)
}

// at is what lies at a path, as text: nothing for null, and for what is below it.
func at(v any, path []string) (text string, found bool) {
	switch m := v.(type) {
	case nil:
		return "", true
	case map[string]any:
		if len(path) > 0 {
			next, found := m[path[0]]
			if !found {
				return "", false
			}
			return at(next, path[1:])
		}
	}
	return fmt.Sprint(v), len(path) == 0
}

// generic is the document of an item as maps, numbers as they were written. The item's own keys come over it.
func generic(i Item) (map[string]any, error) {
	data, err := Encode(i.Value)
	if err != nil {
		return nil, err
	}
	doc, d := map[string]any{}, json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	for k, v := range i.Keys {
		doc[k] = v
	}
	return doc, nil
}

func keys(doc map[string]any) string { return strings.Join(slices.Sorted(maps.Keys(doc)), ", ") }
