package cloudhypervisor

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"
)

// description is godwit's own of the API; its x-since marks decide what may be sent.
//
//go:embed api/api.yaml
var description []byte

type definition struct {
	Properties map[string]property `yaml:"properties"`
}

type property struct {
	Ref   string    `yaml:"$ref"`
	Items *property `yaml:"items"`
	Since int       `yaml:"x-since"`
}

var definitions = sync.OnceValues(func() (map[string]definition, error) {
	var doc struct {
		Definitions map[string]definition `yaml:"definitions"`
	}
	err := yaml.Unmarshal(description, &doc)
	return doc.Definitions, err
})

// fits refuses a body with a field that the running version does not know. The VMM would
// drop it and do something else than it was asked for.
func (c *client) fits(body any) error {
	defs, err := definitions()
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInternal, err)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInternal, err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInternal, err)
	}
	g := apiSchema{definitions: defs, major: c.major}
	return g.check(reflect.Indirect(reflect.ValueOf(body)).Type().Name(), "", tree)
}

type apiSchema struct {
	definitions map[string]definition
	major       int
}

// check goes down tree, which is one of the definition of that name.
func (g apiSchema) check(name, path string, tree any) error {
	switch tree := tree.(type) {
	case []any:
		for _, one := range tree {
			if err := g.check(name, path, one); err != nil {
				return err
			}
		}
	case map[string]any:
		def := g.definitions[name]
		for field, value := range tree {
			p, ok := def.Properties[field]
			if !ok {
				return fmt.Errorf("field %s%s is not in the description: %w", path, field, errdefs.ErrInternal)
			}
			if p.Since > g.major {
				return fmt.Errorf("field %s%s needs version %d, this is %d: %w", path, field, p.Since, g.major,
					errdefs.ErrFailedPrecondition)
			}
			ref := p.Ref
			if p.Items != nil {
				ref = p.Items.Ref
			}
			if ref == "" {
				continue
			}
			if err := g.check(strings.TrimPrefix(ref, "#/definitions/"), path+field+".", value); err != nil {
				return err
			}
		}
	}
	return nil
}
