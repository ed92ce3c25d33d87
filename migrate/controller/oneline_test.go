package controller

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A node's text is one line in records, events and answers: what prints them takes the next line for another one's.
func TestTextsOfNodesAreOneLine(t *testing.T) {
	const said = "no\n8 Succeeded\tdefault/web"
	req := &nodev1.FinishRequest{Reason: said}
	if err := sanitize(req.ProtoReflect(), ""); err != nil {
		t.Fatal(err)
	}
	answer := &nodev1.StatusResponse{Operation: &nodev1.Operation{Reason: said},
		Figures: &nodev1.Figures{Notes: []string{said}}}
	SanitizeAnswer(answer)
	err := AnsweredError(status.Error(codes.Aborted, said))
	for _, text := range []string{req.GetReason(), answer.GetOperation().GetReason(), answer.GetFigures().GetNotes()[0],
		err.Error()} {
		if strings.ContainsAny(text, "\n\t") || !strings.Contains(text, "no; 8 Succeeded") {
			t.Errorf("%q", text)
		}
	}
}

// The ends of lines of a command stay: it is run.
func TestCommandsKeepTheirLines(t *testing.T) {
	req := &nodev1.TemplateMakeRequest{Image: &nodev1.GoldenRequest{Ready: "a\nb"}}
	SanitizeAnswer(req)
	if got := req.GetImage().GetReady(); got != "a\nb" {
		t.Errorf("%q", got)
	}
}
