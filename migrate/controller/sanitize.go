package controller

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"godwit.dev/godwit/internal/visible"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Bounds of what a call says, in bytes: of a word, of a text that is for people, and of facts
// in JSON; and of a list.
const (
	maxWord  = 2048
	maxCut   = 4096
	maxFacts = 64 << 10
	maxList  = 10000
)

// texts are for people: they are one line, what is too long of them is cut, and control characters are shown. facts are
// kept as they are, commands are run in a guest.
var (
	texts = map[protoreflect.Name]bool{"reason": true, "note": true, "obstacles": true, "error": true, "warning": true}
	facts = map[protoreflect.Name]bool{"receipt": true, "outcome": true}

	commands = map[protoreflect.Name]bool{"args": true, "ready": true}
	lists    = map[protoreflect.Name]int{"abort_on": 8, "cpu_classes": 16, "vmms": 16}
)

var vmName = new(nodev1.VM).ProtoReflect().Descriptor().FullName()

// Sanitize makes what a call says fit for the store and for terminals: texts are cut and cleaned, and
// fields that this build does not know are dropped. It refuses what has no such form.
func Sanitize(said proto.Message) error { return sanitize(said.ProtoReflect(), "") }

func sanitize(m protoreflect.Message, path string) (err error) {
	m.SetUnknown(nil)
	name := m.Descriptor().FullName() == vmName // of which the services say what they take: old ones may be removed
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		switch {
		case f.IsMap():
		case f.IsList():
			err = sanitizeList(f, v.List(), at)
		case f.Message() != nil:
			err = sanitize(v.Message(), at+".")
		case f.Kind() == protoreflect.StringKind:
			var text string
			if name && len(v.String()) <= maxWord {
				return true
			}
			if text, err = sanitizeText(f, v.String(), at); err == nil && text != v.String() {
				m.Set(f, protoreflect.ValueOfString(text))
			}
		}
		return err == nil
	})
	return err
}

func sanitizeList(f protoreflect.FieldDescriptor, l protoreflect.List, at string) error {
	most := maxList
	if n, ok := lists[f.Name()]; ok {
		most = n
	}
	if l.Len() > most {
		return fmt.Errorf("%s: it has %d entries, at most %d: %w", at, l.Len(), most, errdefs.ErrInvalidArgument)
	}
	for i := range l.Len() {
		switch {
		case f.Message() != nil:
			if err := sanitize(l.Get(i).Message(), fmt.Sprintf("%s[%d].", at, i)); err != nil {
				return err
			}
		case f.Kind() == protoreflect.StringKind:
			text, err := sanitizeText(f, l.Get(i).String(), at)
			if err != nil {
				return err
			}
			l.Set(i, protoreflect.ValueOfString(text))
		}
	}
	return nil
}

// sanitizeText is a string as it may be kept.
func sanitizeText(f protoreflect.FieldDescriptor, s, at string) (string, error) {
	field, most := f.Name(), maxWord
	switch {
	case texts[field]:
		return shown(s), nil
	case facts[field]:
		most = maxFacts
	case field == "after": // a place of a list, which this controller has given out
		return s, nil
	case commands[field]:
		return s, nil
	}
	if len(s) > most {
		return "", fmt.Errorf("%s: it has %d bytes, at most %d: %w", at, len(s), most, errdefs.ErrInvalidArgument)
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 && !facts[field] {
		return "", fmt.Errorf("%s: %q has a control character at byte %d: leave it away: %w", at, visible.Cut(s, 100), i,
			errdefs.ErrInvalidArgument)
	}
	return s, fitsPattern(f, s, at)
}
