package transition_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/migrate/transition"
)

// The node that has a VM says what it is called, while nothing moves it. Nothing else of the record changes.
func TestName(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "abc"}
	at := func(node string) *nodev1.Record {
		return &nodev1.Record{Vm: vm, Uid: "u", Generation: 3, Owner: &nodev1.Owner{Node: node}, Home: "a", Name: "old"}
	}
	with := func(rec *nodev1.Record, kind nodev1.Kind) *nodev1.Record {
		rec.Operation = &nodev1.Operation{Id: "o", Kind: kind, Phase: nodev1.Phase_PHASE_PENDING}
		return rec
	}
	asleep := at("")
	asleep.Owner = &nodev1.Owner{Digest: "sha256:aa"}
	req := func(name string) *nodev1.NameRequest {
		return &nodev1.NameRequest{Vm: vm, Uid: "u", Node: "a", Name: name}
	}
	for what, tt := range map[string]struct {
		rec  *nodev1.Record
		req  *nodev1.NameRequest
		is   func(error) bool
		want string
	}{
		"runs here":       {at("a"), req("web"), nil, "web"},
		"stopped":         {at(""), req("web"), nil, "web"},
		"its id":          {at("a"), req("abc"), nil, ""},
		"none any more":   {at("a"), req(""), nil, ""},
		"checkpoint":      {with(at("a"), nodev1.Kind_KIND_CHECKPOINT), req("web"), nil, "web"},
		"as it is":        {with(at("b"), nodev1.Kind_KIND_MIGRATE), req("old"), nil, "old"},
		"runs elsewhere":  {at("b"), req("web"), errdefs.IsFailedPrecondition, "node b"},
		"moves":           {with(at("a"), nodev1.Kind_KIND_MIGRATE), req("web"), errdefs.IsFailedPrecondition, "has ended"},
		"is put to sleep": {with(at("a"), nodev1.Kind_KIND_HIBERNATE), req("web"), errdefs.IsFailedPrecondition, "has ended"},
		"sleeps":          {asleep, req("web"), errdefs.IsFailedPrecondition, "godwit wake abc"},
		"no name":         {at("a"), req("a b"), errdefs.IsInvalidArgument, "letters"},
		"path":            {at("a"), req("../x"), errdefs.IsInvalidArgument, "letters"},
		"long":            {at("a"), req(strings.Repeat("x", 77)), errdefs.IsInvalidArgument, "76"},
		"made anew":       {at("a"), &nodev1.NameRequest{Vm: vm, Uid: "v", Node: "a", Name: "web"}, isError, ""},
		"unknown":         {nil, req("web"), errdefs.IsNotFound, ""},
	} {
		c, err := transition.Name(transition.State{Record: tt.rec}, tt.req)
		if tt.is != nil {
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		now := c.Record
		if now == nil {
			now = tt.rec
		}
		if err != nil || now.GetName() != tt.want || now.GetGeneration() != 3 {
			t.Errorf("%s: %v, %v", what, now, err)
		}
	}
}

func isError(err error) bool { return err != nil }
