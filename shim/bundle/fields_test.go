package bundle

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What a field of the spec may be: docs/reference/oci-spec.md says which one is what.
const (
	honoured    = "honoured"
	refusedAs   = "refused"
	meaningless = "meaningless"
)

// documented reads the table of the page: path of a field to what happens to it.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/oci-spec.md")
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9.\\[\\]]+)` \\| (honoured|refused|meaningless) \\|").
		FindAllStringSubmatch(string(page), -1) {
		if fields[m[1]] != "" {
			t.Errorf("%s is documented twice", m[1])
		}
		fields[m[1]] = m[2]
	}
	return fields
}

// walk calls fn for every field of the spec, with how it is set; fn answers whether the
// fields below it are to be visited.
func walk(t reflect.Type, path string, fn func(path string, field reflect.StructField) bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			walk(f.Type, path, fn)
			continue
		}
		p := strings.TrimPrefix(path+"."+name, ".")
		below := f.Type
		for below.Kind() == reflect.Pointer || below.Kind() == reflect.Slice || below.Kind() == reflect.Map {
			if below.Kind() != reflect.Pointer {
				p += "[]"
			}
			below = below.Elem()
		}
		if fn(p, f) && below.Kind() == reflect.Struct {
			walk(below, p, fn)
		}
	}
}

// Every field of the OCI runtime spec is honoured, refused by name, or documented as meaningless
// in a VM. So a newer version of the spec cannot slip in unseen.
func TestEveryFieldIsDocumented(t *testing.T) {
	page := documented(t)
	used := map[string]bool{}
	walk(reflect.TypeFor[specs.Spec](), "", func(path string, f reflect.StructField) bool {
		what := page[path]
		used[path] = true
		if what == "" {
			t.Errorf("docs/reference/oci-spec.md does not say what happens to %s (%s)", path, f.Type)
		}
		return what == honoured // what is below the others shares their fate
	})
	for path := range page {
		if !used[path] {
			t.Errorf("docs/reference/oci-spec.md names %s, which is no field of the spec, or below one that is refused", path)
		}
	}
}

// fill makes a value that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if v.Elem().Kind() != reflect.Struct {
			fill(v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	}
}

// valid are the values of fields that stand next to a refused one and must be there.
var valid = map[string]string{
	"linux.seccomp": `{"defaultAction":"SCMP_ACT_ALLOW"}`, "linux.personality": `{"domain":"LINUX"}`,
	"mounts[]": `{"destination":"/data","type":"tmpfs"}`,
}

// set fills the field of that path, and makes what is round it.
func set(t *testing.T, v reflect.Value, at, path string) {
	t.Helper()
	head, rest, more := strings.Cut(path, ".")
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != strings.TrimRight(head, "[]") {
			continue
		}
		field, at := v.Field(i), strings.TrimPrefix(at+"."+head, ".")
		if !more {
			fill(field)
			return
		}
		if field.Kind() == reflect.Slice {
			field.Set(reflect.Append(field, reflect.New(field.Type().Elem()).Elem()))
			field = field.Index(field.Len() - 1)
		} else if field.Kind() == reflect.Pointer {
			if field.IsNil() {
				field.Set(reflect.New(field.Type().Elem()))
			}
			field = field.Elem()
		}
		if text := valid[at]; text != "" {
			if err := json.Unmarshal([]byte(text), field.Addr().Interface()); err != nil {
				t.Fatal(err)
			}
		}
		set(t, field, at, rest)
		return
	}
	t.Fatalf("no field %s in %s", path, v.Type())
}

// What the page calls refused is refused, with the field's name, and nothing else is
// said to be.
func TestEveryRefusalNamesItsField(t *testing.T) {
	for path, what := range documented(t) {
		if what != refusedAs {
			continue
		}
		t.Run(path, func(t *testing.T) {
			s := generate(t)
			if path == "linux.resources.memory.useHierarchy" { // refused only where false
				s.Linux.Resources.Memory = &specs.LinuxMemory{UseHierarchy: new(bool)}
			} else {
				set(t, reflect.ValueOf(s).Elem(), "", path)
			}
			_, err := load(t, s)
			name := strings.TrimSuffix(path[strings.LastIndexByte(path, '.')+1:], "[]")
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Load = %v, want a refusal that names %s", err, path)
			}
		})
	}
}

// byDefault are the values that clients give by themselves where any other is refused.
var byDefault = map[string]string{
	"process.apparmorProfile": `{"process":{"apparmorProfile":"nerdctl-default"}}`,
	"process.selinuxLabel":    `{"process":{"selinuxLabel":"system_u:system_r:container_t:s0"}}`,
	"linux.mountLabel":        `{"linux":{"mountLabel":"system_u:object_r:container_file_t:s0"}}`,
}

// What the page calls meaningless changes nothing of the VM.
func TestMeaninglessFieldsAreAccepted(t *testing.T) {
	for path, what := range documented(t) {
		if what != meaningless {
			continue
		}
		t.Run(path, func(t *testing.T) {
			s := generate(t)
			if text := byDefault[path]; text == "" {
				set(t, reflect.ValueOf(s).Elem(), "", path)
			} else if err := json.Unmarshal([]byte(text), s); err != nil {
				t.Fatal(err)
			}
			if _, err := load(t, s); err != nil {
				t.Error(err)
			}
		})
	}
}
