package scheduler

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/shim/template"
)

// newScheduler has a maker that is a script, in a node of the test. It needs root: the maker is
// in namespaces of its own.
func newScheduler(t *testing.T, script string) *Scheduler {
	t.Helper()
	cfg := config.Default()
	cfg.StateDir, cfg.RAMDir = t.TempDir(), t.TempDir()
	s := New(cfg, "")
	path := filepath.Join(t.TempDir(), "maker")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.args[0] = path
	return s
}

func order(s *Scheduler, shape *nodev1.TemplateShape) error {
	_, err := s.Make(context.Background(), &nodev1.TemplateMakeRequest{Boot: shape})
	return err
}

// A shape that no VM can have is refused by the name of the field, before a maker runs. It is
// refused too on a node where every VM boots.
func TestShapesThatCannotBe(t *testing.T) {
	s := newScheduler(t, "exit 1")
	for field, shape := range map[string]*nodev1.TemplateShape{
		"memory: 1MiB": {Memory: 1 << 20}, "memory: 65MiB": {Memory: 65 << 20}, "vcpus: 241": {Vcpus: 241},
		"nics: 5": {Nics: 5}, "layers: 24": {Layers: 24}, `vmm: "xen"`: {Vmm: "xen"},
	} {
		if err := order(s, shape); !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	s.config.Template.Boot.Mode = "off"
	if err := order(s, nil); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "template.boot.mode") {
		t.Errorf("on a node without templates: %v", err)
	}
}

// What the maker refuses comes with its class. A maker that ends without a word, or is silent
// for longer than the order allows, is an error and no template.
func TestMakerThatFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	refused := template.AnswerOf("", false, errors.Join(errors.New("no such VMM"), errdefs.ErrNotImplemented))
	for script, is := range map[string]func(error) bool{
		`cat >/dev/null; echo '{"code":12,"error":"` + strings.Split(refused.Error, "\n")[0] +
			`"}'`: errdefs.IsNotImplemented,
		"true":                                errdefs.IsUnavailable,
		"exit 3":                              func(err error) bool { return err != nil },
		`cat >/dev/null; echo '{"key":"00"}'`: errdefs.IsResourceExhausted, // and it is gone
	} {
		if err := order(newScheduler(t, script), &nodev1.TemplateShape{}); !is(err) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if err := order(newScheduler(t, "exec sleep 1000"), &nodev1.TemplateShape{TimeoutMs: 50}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("a maker that does not end: %v", err)
	}
	if refused.Code != 12 || !errdefs.IsNotImplemented(refused.Err()) {
		t.Errorf("the answer has lost its class: %+v", refused)
	}
}

// One maker runs at a time; an order that waits for its turn ends with its caller.
func TestOneMaker(t *testing.T) {
	s := newScheduler(t, "exit 1")
	s.turn <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.order(ctx, template.Order{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an order while another is carried out: %v", err)
	}
}

// A template of a boot does not leave its node, which the error says with what to do.
func TestBootIsNotPushed(t *testing.T) {
	_, err := newScheduler(t, "").Push(t.Context(), &nodev1.TemplateInfo{}, "reg/vms")
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "godwit template make --boot") {
		t.Errorf("push: %v", err)
	}
}
