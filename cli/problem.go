package cli

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"godwit.dev/godwit/client"
)

// explain is the one place where an error becomes what a user reads. It goes by types: the text of an error that has
// none of them is shown without its classes, and is cut into the three parts.
func (o *options) explain(err error) *client.Problem {
	var own *client.Problem
	var command *client.CommandError
	var ended *client.EndedError
	var several interface{ Unwrap() []error }
	c := o.client()
	defer c.Close()
	switch {
	case errors.As(err, &several) && len(several.Unwrap()) > 1 && isEach(err):
		return o.all(several.Unwrap(), err)
	case errors.As(err, &ended):
		p := o.explain(ended.Err)
		return &client.Problem{What: o.said(ended.What), Why: strings.TrimSpace(p.What + " " + p.Why),
			Remedy: strings.TrimSpace(p.Remedy + " " + o.said(ended.Remedy)), Cause: err}
	case errors.As(err, &own):
		return &client.Problem{What: o.said(own.What), Why: o.said(own.Why), Remedy: o.said(own.Remedy), Cause: err}
	case errors.As(err, &command):
		return notStarted(command)
	case errors.Is(err, context.Canceled):
		p := &client.Problem{What: "Interrupted.", Cause: err}
		if why := bare(err); why != context.Canceled.Error() {
			p.Why = o.said(sentence(capital(why)))
		}
		return p
	}
	if p := c.Explain(context.Background(), err); p != nil {
		return p
	}
	return parts(o.said(sentence(bare(err))), err)
}

// said has VMs as the user has called them.
func (o *options) said(text string) string { return o.names.In(text) }

// eachError is of a verb on several VMs: what went wrong with some.
type eachError struct{ failed []error }

func (e *eachError) Error() string   { return errors.Join(e.failed...).Error() }
func (e *eachError) Unwrap() []error { return e.failed }

func isEach(err error) bool {
	_, ok := errors.AsType[*eachError](err)
	return ok
}

// all tells several errors, one after the other.
func (o *options) all(failed []error, err error) *client.Problem {
	p := &client.Problem{Cause: err}
	for _, f := range failed {
		p.What = strings.TrimSpace(p.What + " " + o.explain(f).Error())
	}
	return p
}

// toDo begins what to do, and nextSentence any other sentence after the first one.
var (
	toDo         = regexp.MustCompile(`[.?!] To `)
	nextSentence = regexp.MustCompile(`[.?!] [A-Z]`)
)

// parts cuts a text: the first sentence says what is wrong, the last ones, from "To .." on, what to do.
func parts(text string, cause error) *client.Problem {
	p := &client.Problem{What: text, Cause: cause}
	if at := toDo.FindStringIndex(text); at != nil {
		p.What, p.Remedy = text[:at[0]+1], text[at[0]+2:]
	}
	if at := nextSentence.FindStringIndex(p.What); at != nil {
		p.What, p.Why = p.What[:at[0]+1], p.What[at[0]+2:]
	}
	return p
}

// notStarted says why a command could not be run. The reason is what comes after "exec: ", as runtimes write it. The
// steps on the way to it are for --verbose.
func notStarted(err *client.CommandError) *client.Problem {
	why := bare(err)
	if err.Dir != "" {
		if i := strings.LastIndex(why, "failed: "); i >= 0 {
			why = why[i+len("failed: "):]
		}
		return &client.Problem{What: "The command cannot be run in the directory " + err.Dir + " of the VM.",
			Why: sentence(capital(why)), Remedy: "To run it in another one: --workdir.", Cause: err}
	}
	if i := strings.Index(why, "exec: "); i >= 0 {
		why = why[i+len("exec: "):]
	}
	p := &client.Problem{What: "The command cannot be run.", Why: sentence(why), Cause: err}
	if err.Code == client.NoCommand {
		p.What, p.Remedy = "There is no such command in the VM.", "Name one that the image has, or its whole path."
	}
	return p
}

// sentence ends a text with a full stop, if it has no end of its own.
func sentence(text string) string {
	if text == "" || strings.ContainsAny(text[len(text)-1:], ".?!") {
		return text
	}
	return text + "."
}

// capital begins a sentence. Names of flags and keys stay as they are.
func capital(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if first == "" || strings.ContainsAny(first, "-_./:\"") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
