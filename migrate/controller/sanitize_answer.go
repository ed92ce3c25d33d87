package controller

import (
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/visible"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// SanitizeAnswer makes what a node answers fit for records, events and terminals. It refuses nothing, as
// an answer that is refused costs an honest node of another build its operation: what is too long is
// cut, lists too, control characters are shown, and fields that this build does not know are dropped.
func SanitizeAnswer(said proto.Message) { sanitizeAnswer(said.ProtoReflect()) }

func sanitizeAnswer(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			m.Clear(f) // no answer of a node has one
		case f.IsList():
			sanitizeAnswers(f, v.List())
		case f.Message() != nil:
			sanitizeAnswer(v.Message())
		case f.Kind() == protoreflect.StringKind && facts[f.Name()]:
			m.Set(f, protoreflect.ValueOfString(visible.Cut(v.String(), maxFacts)))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(shownIn(f, v.String())))
		}
		return true
	})
}

// sanitizeAnswers cuts a list of texts where they are longer together than one may be: they become one
// reason.
func sanitizeAnswers(f protoreflect.FieldDescriptor, l protoreflect.List) {
	if l.Len() > maxList {
		l.Truncate(maxList)
	}
	bytes := 0
	for i := range l.Len() {
		switch {
		case f.Message() != nil:
			sanitizeAnswer(l.Get(i).Message())
		case f.Kind() == protoreflect.StringKind:
			text := shownIn(f, l.Get(i).String())
			if bytes += len(text); bytes > maxCut && i > 0 {
				l.Truncate(i)
				return
			}
			l.Set(i, protoreflect.ValueOfString(text))
		}
	}
}

// shownIn is a string of an answer. Only of a command do ends of lines say something.
func shownIn(f protoreflect.FieldDescriptor, s string) string {
	if commands[f.Name()] {
		return visible.Cut(visible.Text(visible.Cut(s, maxCut)), maxCut)
	}
	return shown(s)
}

// shown is a text as people may see it, in one line: a node forges no other line of what is printed.
func shown(s string) string {
	s = strings.ReplaceAll(visible.Cut(s, maxCut), "\n", "; ")
	return visible.Cut(visible.Line(s), maxCut)
}

// AnsweredError is the error that a node has answered on the wire, as TidyAnswer has it. Its class
// stays, and the record of a record.HeldError.
func AnsweredError(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	said := st.Proto()
	said.Message = shown(said.GetMessage())
	said.Details = nil
	for _, d := range st.Details() {
		rec, ok := d.(*nodev1.Record)
		if !ok {
			continue
		}
		SanitizeAnswer(rec)
		if detail, aerr := anypb.New(rec); aerr == nil {
			said.Details = append(said.Details, detail)
		}
	}
	return record.FromWire(status.ErrorProto(said))
}
