package moves

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "godwit.dev/godwit/api/agent/v1" // its calls have rows too
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const authorizationPage = "../../docs/reference/authorization.md"

// calls are all that this build's protocols have: Service.Call.
func calls() (all []string) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "godwit.") {
			return true
		}
		for i := range f.Services().Len() {
			svc := f.Services().Get(i)
			for j := range svc.Methods().Len() {
				all = append(all, string(svc.Name())+"."+string(svc.Methods().Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(all)
	return all
}

// The page has one row for each call, and none for another.
func TestAuthorizationHasEveryCall(t *testing.T) {
	page, err := os.ReadFile(authorizationPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.TrimSpace(cells[2]) == "" {
			continue
		}
		for _, call := range regexp.MustCompile("`([A-Z][A-Za-z]*\\.[A-Z][A-Za-z]*)`").FindAllStringSubmatch(cells[1], -1) {
			rows[call[1]]++
		}
	}
	all := calls()
	for _, call := range all {
		if rows[call] != 1 {
			t.Errorf("%s has %d rows in %s, want one", call, rows[call], authorizationPage)
		}
		delete(rows, call)
	}
	for call := range rows {
		t.Errorf("%s has a row for %s, which is no call", authorizationPage, call)
	}
	if len(all) < 60 {
		t.Errorf("%d calls are known: the walk misses some", len(all))
	}
}

// attacks are what the rogue asks of each call: another node's VM, or another node.
func (a *arena) attacks() map[string][]proto.Message {
	run, busy, moving, sleeps := named("run"), named("busy"), named("moving"), named("sleeps")
	g := uint64(1)
	wake := &nodev1.Operation{Id: "w", Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "rogue"}
	with := func(op *nodev1.Operation, change func(*nodev1.Operation)) *nodev1.Operation {
		op = proto.CloneOf(op)
		change(op)
		return op
	}
	return map[string][]proto.Message{
		"Records.Ensure": {
			&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "../..", Id: "x"}},
			&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "default", Id: "a\x1b[2Jb"}},
			&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "default\x00run", Id: "x"}},
			&nodev1.EnsureRequest{Vm: &nodev1.VM{Namespace: "default", Id: strings.Repeat("a", record.VMIDMax+1)}},
			&nodev1.EnsureRequest{Vm: named("new"), Uid: "0d9e4a2c-7f3b-4c58-9d37-0a6f1c2b3e4d", Node: "victim"},
			&nodev1.EnsureRequest{Vm: named("new"), Uid: "0d9e4a2c-7f3b-4c58-9d37-0a6f1c2b3e4d"},
			&nodev1.EnsureRequest{Vm: run, Uid: "0d9e4a2c-7f3b-4c58-9d37-0a6f1c2b3e4d"},
		},
		"Records.Own": {
			&nodev1.OwnRequest{Vm: run, Node: "rogue", Generation: g}, &nodev1.OwnRequest{Vm: run, Node: "victim",
				Generation: g},
			&nodev1.OwnRequest{Vm: sleeps, Node: "rogue", Generation: 2},
		},
		"Records.Open": {
			&nodev1.OpenRequest{Vm: run, Operation: with(wake, func(op *nodev1.Operation) {
				op.Generation, op.Digest = g, dig("run")
			}), ForceDigest: dig("run")},
			&nodev1.OpenRequest{Vm: run, Operation: with(wake, func(op *nodev1.Operation) {
				op.Generation, op.Digest = g, dig("run")
			}), ForceDigest: dig("run"), LostNode: "victim"},
			&nodev1.OpenRequest{Vm: run, Operation: &nodev1.Operation{Id: "h", Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1,
				Source: "victim", Generation: g}},
			&nodev1.OpenRequest{Vm: run, Operation: &nodev1.Operation{Id: "h", Kind: nodev1.Kind_KIND_HIBERNATE, Attempt: 1,
				Source: "rogue", Generation: g}},
			&nodev1.OpenRequest{Vm: run, Operation: &nodev1.Operation{Id: "c", Kind: nodev1.Kind_KIND_CHECKPOINT, Attempt: 1,
				Source: "rogue", Generation: g}},
			&nodev1.OpenRequest{Vm: run, Operation: &nodev1.Operation{Id: "mm", Kind: nodev1.Kind_KIND_MIGRATE, Attempt: 1,
				Source: "victim", Destination: "rogue", Generation: g}},
			&nodev1.OpenRequest{Vm: sleeps, Operation: with(wake, func(op *nodev1.Operation) {
				op.Generation, op.Destination = 2, "third"
			})},
			&nodev1.OpenRequest{Vm: sleeps, Operation: with(wake, func(op *nodev1.Operation) {
				op.Generation, op.Destination, op.ByPlace, op.Wish = 2, "", true, "rogue"
			})},
		},
		"Records.Advance": {
			&nodev1.AdvanceRequest{Vm: busy, Operation: "h-busy", Attempt: 1, Generation: g, Phase: nodev1.Phase_PHASE_ABORTING},
			&nodev1.AdvanceRequest{Vm: moving, Operation: "m", Attempt: 1, Generation: g, Phase: nodev1.Phase_PHASE_ABORTING,
				Retarget: "rogue"},
		},
		"Records.Commit": {&nodev1.CommitRequest{Vm: busy, Operation: "h-busy", Attempt: 1, Generation: g,
			Owner: &nodev1.Owner{Digest: dig("busy")}}},
		"Records.Place": {&nodev1.PlaceRequest{Vm: moving, Operation: "m", Attempt: 1, Generation: g, Node: "rogue",
			Place: "pod"}},
		"Records.Retry": {&nodev1.RetryRequest{Vm: moving, Operation: "m", Attempt: 1, Generation: g}},
		"Records.Finish": {&nodev1.FinishRequest{Vm: busy, Operation: "h-busy", Attempt: 1, Generation: g,
			Phase: nodev1.Phase_PHASE_FAILED}},
		"Records.Disown": {&nodev1.DisownRequest{Vm: run, Node: "victim", Generation: g},
			&nodev1.DisownRequest{Vm: run, Node: "rogue", Generation: g}},
		"Records.Pin": {&nodev1.PinRequest{Vm: run, Digest: dig("run"), Pinned: proto.Bool(true)},
			&nodev1.PinRequest{Vm: sleeps, Digest: dig("sleeps"), Name: proto.String("mine")}},
		"Records.Name": {&nodev1.NameRequest{Vm: run, Node: "rogue", Name: "mine"},
			&nodev1.NameRequest{Vm: run, Node: "victim", Name: "mine"},
			&nodev1.NameRequest{Vm: sleeps, Node: "rogue", Name: "mine"}},
		"Records.Schedule": {
			&nodev1.ScheduleRequest{Vm: run, Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 1}},
			&nodev1.ScheduleRequest{Vm: sleeps, Schedule: &nodev1.Schedule{EveryMs: 60000, Keep: 1}},
		},
		"Records.Delete": {&nodev1.DeleteRequest{Vm: run, Deletion: &nodev1.Deletion{Id: "d"}},
			&nodev1.DeleteRequest{Vm: run, Cancel: true}},
		"Records.Reclaim": {&nodev1.ReclaimRequest{Vm: moving, Operation: "m", Generation: g, LostNode: "third"}},
		"Records.Remove": {
			&nodev1.RemoveRequest{Vm: run, Force: true, DropSnapshots: true}, &nodev1.RemoveRequest{Vm: sleeps, Force: true,
				DropSnapshots: true},
			&nodev1.RemoveRequest{Vm: run, Force: true, LostNode: "victim"},
		},
		"Records.Trim": {&nodev1.TrimRequest{Vm: sleeps, Digest: dig("sleeps")},
			&nodev1.TrimRequest{Vm: run, Digest: dig("run")}},
		"Records.Clear": {&nodev1.ClearRequest{Vm: named("owes"), Repository: "reg/vms/" + a.uids["owes"],
			Digest: dig("owes")}},

		"Store.Restore": {&nodev1.RestoreRequest{}, &nodev1.RestoreRequest{Retire: []string{"victim"}}},
		"Store.Retire":  {&nodev1.RetireRequest{Node: "victim"}},
		"Store.Report": {&nodev1.ReportRequest{Node: "victim",
			Held: []*nodev1.Held{{Vm: run, Uid: a.uids["run"], Generation: 9, Phase: "OWN"}}}},

		"Moves.Migrate": {&nodev1.MigrateRequest{Vm: run, To: "third"}, &nodev1.MigrateRequest{Vm: run},
			&nodev1.MigrateRequest{Vm: moving, To: "rogue", Operation: "m"}},
		"Moves.Abort": {&nodev1.AbortRequest{Operation: "m"}},
		"Moves.Recover": {&nodev1.RecoverRequest{Vm: run, To: "third", Fenced: true},
			&nodev1.RecoverRequest{Vm: run, To: "rogue", Fenced: true}, &nodev1.RecoverRequest{Vm: moving, FromSource: true,
				Fenced: true}},
		"Moves.Wake": {&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: sleeps}, On: "third"},
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: run, LostNode: "victim", Force: true}}},
		"Moves.Log": {&nodev1.LogRequest{Vm: run, Node: "victim"}, &nodev1.LogRequest{Vm: sleeps, Node: "victim"},
			&nodev1.LogRequest{Vm: moving, Node: "victim", Uid: a.uids["moving"]},
			&nodev1.LogRequest{Vm: run, Node: "rogue", Uid: a.uids["run"]}},
		"Moves.Announce": {&nodev1.AnnounceRequest{Node: &nodev1.NodeInfo{Name: "victim", Address: "192.0.2.1:1"}}},
		"Moves.Cordon":   {&nodev1.CordonRequest{Node: "victim"}},
		"Moves.Drain":    {&nodev1.DrainRequest{Node: "victim", To: "rogue"}},
	}
}

// reads change nothing, for any caller.
func (a *arena) reads() map[string]proto.Message {
	return map[string]proto.Message{
		"Records.Get": &nodev1.GetRequest{Vm: named("run")}, "Records.List": &nodev1.ListRequest{},
		"Records.Owed":      &nodev1.OwedRequest{},
		"Records.Operation": &nodev1.OperationRequest{Id: "m"},
		"Store.State":       &nodev1.StateRequest{},
		"Moves.Get":         &nodev1.StatusRequest{Operation: "m"}, "Moves.List": &nodev1.MovesRequest{},
		"Moves.Events": &nodev1.EventsRequest{},
		"Moves.Nodes":  &nodev1.NodesRequest{}, "Moves.Watch": nil, // Events, as a stream
		"Pods.Login":    &nodev1.LoginRequest{Repository: "reg/vms/u1"},
		"Pods.Resolve":  &nodev1.ResolveRequest{Vm: named("run")},
		"Pods.Stopping": &nodev1.StoppingRequest{Vm: named("run")},
	}
}

// all of the store, as text.
func (a *arena) all(t *testing.T) string {
	t.Helper()
	resp, err := controller.New(a.store).List(t.Context(), &nodev1.ListRequest{})
	deletions, oerr := controller.New(a.store).Owed(t.Context(), &nodev1.OwedRequest{})
	state, serr := a.store.State(t.Context())
	if err = errors.Join(err, oerr, serr); err != nil {
		t.Fatal(err)
	}
	text := prototext.Format(resp) + prototext.Format(deletions) + prototext.Format(state)
	for _, kind := range []string{"node", "cordoned", "event", "report"} {
		notes, err := a.store.Notes(t.Context(), kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range notes {
			text += kind + " " + n.Key + " " + string(n.Value) + "\n"
		}
	}
	return text
}

// ask makes one call by its name.
func ask(ctx context.Context, c *ttrpc.Client, call string, req proto.Message) error {
	service, method, _ := strings.Cut(call, ".")
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return record.FromWire(c.Call(ctx, "godwit.node.v1."+service, method, req, answerOf(service, method)))
}

func answerOf(service, method string) proto.Message {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("godwit.node.v1." + service))
	if err != nil {
		return &nodev1.GetRequest{}
	}
	out := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method)).Output()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(out.FullName())
	if err != nil {
		return &nodev1.GetRequest{}
	}
	return kind.New().Interface()
}

// A node with a valid certificate gets nothing of another node's by any call, over real mutual TLS:
// each is refused in words, and the store is what it was.
func TestAuthorization(t *testing.T) {
	for _, pull := range []controller.Pull{controller.PullAny, controller.PullController} {
		a := newArena(t, controller.Policy{Repositories: []string{"reg/vms"}, Pull: pull})
		attacks, reads := a.attacks(), a.reads()
		if pull == controller.PullController { // what else a node may have by default
			attacks = a.pulls()
		}
		before := a.all(t)
		for _, call := range calls() {
			service, _, _ := strings.Cut(call, ".")
			tries := attacks[call]
			switch read, ok := reads[call]; {
			case ok && read != nil:
				if err := ask(t.Context(), a.rogue, call, read); err != nil {
					t.Errorf("%s, which any node may ask: %v", call, err)
				}
			case ok || len(tries) > 0 || pull == controller.PullController:
			case service == "Records" || service == "Moves" || service == "Store":
				t.Errorf("%s has no attack in this test", call)
			default: // not for nodes: it is served elsewhere, or refused with the connection
				a.elsewhere(t, call)
			}
			for i, req := range tries {
				err := ask(t.Context(), a.rogue, call, req)
				if st, ok := status.FromError(err); err == nil || errdefs.IsUnavailable(err) || errdefs.IsNotImplemented(err) ||
					errdefs.IsUnknown(err) || ok && st == nil {
					t.Errorf("move.pull %s: %s, try %d: %v, want a refusal", pull, call, i, err)
				}
			}
			if now := a.all(t); now != before {
				t.Fatalf("move.pull %s: %s has changed the store:\n%s\nbefore:\n%s", pull, call, now, before)
			}
		}
	}
}

// elsewhere wants that neither port answers a call.
func (a *arena) elsewhere(t *testing.T, call string) {
	t.Helper()
	if err := ask(t.Context(), a.rogue, call, &nodev1.GetRequest{}); !errdefs.IsNotImplemented(err) {
		t.Errorf("the controller's port answers %s: %v", call, err)
	}
	if err := ask(t.Context(), a.peer, call, &nodev1.GetRequest{}); err == nil {
		t.Errorf("a node's port answers %s by a node that is no controller", call)
	}
}

// pulls bring a VM that was never the rogue's to it.
func (a *arena) pulls() map[string][]proto.Message {
	return map[string][]proto.Message{
		"Records.Open": {&nodev1.OpenRequest{Vm: named("sleeps"), Operation: &nodev1.Operation{Id: "w",
			Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: "rogue", Generation: 2}}},
		"Moves.Migrate": {&nodev1.MigrateRequest{Vm: named("run"), To: "rogue"}},
		"Moves.Wake": {&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: named("sleeps")}, On: "rogue"},
			&nodev1.WakeOrder{Wake: &nodev1.WakeRequest{Vm: named("sleeps"), Digest: dig("sleeps"), Force: true}}},
		"Moves.Recover": {&nodev1.RecoverRequest{Vm: named("run"), To: "rogue", Fenced: true}},
	}
}
