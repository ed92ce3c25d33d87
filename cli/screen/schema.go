package screen

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Schema is the JSON Schema (draft 2020-12) of a document as Encode writes it: of a message of the API, or of a Go
// value with JSON tags.
func Schema(title string, v any) map[string]any {
	var s map[string]any
	if m, ok := v.(proto.Message); ok {
		s = messageSchema(m.ProtoReflect().Descriptor())
	} else {
		s = goSchema(reflect.TypeOf(v))
	}
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", title
	return s
}

func messageSchema(m protoreflect.MessageDescriptor) map[string]any {
	properties, names := map[string]any{}, []string{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		properties[key(f)] = fieldSchema(f)
		names = append(names, key(f))
	}
	return object(properties, names)
}

func object(properties map[string]any, required []string) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func fieldSchema(f protoreflect.FieldDescriptor) map[string]any {
	switch {
	case f.IsMap():
		return map[string]any{"type": "object", "additionalProperties": valueSchema(f.MapValue())}
	case f.IsList():
		return map[string]any{"type": "array", "items": valueSchema(f)}
	case isTime(f):
		return map[string]any{"type": []string{"string", "null"}, "format": "date-time"}
	}
	s := valueSchema(f)
	if f.HasPresence() || f.Kind() == protoreflect.DoubleKind || f.Kind() == protoreflect.FloatKind {
		return map[string]any{"oneOf": []any{s, map[string]any{"type": "null"}}}
	}
	return s
}

func valueSchema(f protoreflect.FieldDescriptor) map[string]any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return messageSchema(f.Message())
	case protoreflect.EnumKind:
		words := []string{}
		for i := range f.Enum().Values().Len() {
			words = append(words, word(f.Enum(), f.Enum().Values().Get(i).Number()))
		}
		return map[string]any{"type": "string", "examples": words} // a later build may have more
	case protoreflect.BytesKind:
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	case protoreflect.StringKind:
		return map[string]any{"type": "string"}
	case protoreflect.BoolKind:
		return map[string]any{"type": "boolean"}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return map[string]any{"type": "number"}
	default:
		return map[string]any{"type": "integer"}
	}
}

// goSchema is of a type whose keys are JSON tags.
func goSchema(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		return goSchema(t.Elem())
	}
	switch own := reflect.Zero(t).Interface().(type) {
	case time.Time:
		return map[string]any{"type": "string"}
	case json.RawMessage:
		return map[string]any{}
	case interface{ schema() map[string]any }:
		return own.schema()
	}
	switch t.Kind() {
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": goSchema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": goSchema(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		for i := range t.NumField() {
			if f := t.Field(i); f.Anonymous {
				inner := goSchema(f.Type)
				maps.Copy(properties, inner["properties"].(map[string]any))
				required = append(required, inner["required"].([]string)...)
				continue
			}
			name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			properties[name] = goSchema(t.Field(i).Type)
			if !strings.Contains(options, "omitempty") {
				required = append(required, name)
			}
		}
		return object(properties, required)
	case reflect.Interface:
		return map[string]any{}
	default:
		return map[string]any{"type": "integer"}
	}
}
