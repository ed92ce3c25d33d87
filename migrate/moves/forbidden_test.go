package moves

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/node"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// spot is where the bytes of invalidUTF8 come, which no Go program can put into a message.
const spot = "PLACE-OF-BYTES"

var invalidUTF8 = strings.Repeat("\xff", len(spot))

// forbidden is each kind of name that no call takes. A word that is no name may have dots and slashes.
var forbidden = map[string]string{
	"up": "../..", "escape": "a\x1b[2Jb", "nul": "a\x00b", "newline": "a\nb", "long": strings.Repeat("a", 1<<20),
	"utf-8": spot,
}

// Fields that are no names: what is said in them is cut, cleaned, kept as JSON or run in a guest (TestTidy). A
// place of a list is the controller's own.
var (
	free  = []string{"reason", "note", "obstacles", "error", "warning", "args", "ready", "after", "receipt", "outcome"}
	names = []string{
		"node", "source", "destination", "retarget", "lost_node", "home", "driver", "payer", "by", "on", "retire",
		"operation", "digest", "force_digest", "spent", "deletion",
		"MigrateRequest.to", "RecoverRequest.to", "DrainRequest.to", "NodeInfo.name", "OperationRequest.id", "Operation.id",
		"Deletion.id", "DiffRequest.from", "DiffRequest.to",
		"PeerReleaseRequest.owner", "GoldenRequest.namespace", "VM.id", "VM.namespace",
	}
	// filters take the name of any VM: one that is no name finds what a build before has made.
	filters = []string{"Records.Owed", "Moves.List", "Node.Prune", "Node.Golden", "Node.VMs"}
)

func listed(all []string, f protoreflect.FieldDescriptor) bool {
	for _, n := range all {
		if n == string(f.Name()) || n == string(f.Parent().Name())+"."+string(f.Name()) {
			return true
		}
	}
	return false
}

// strings finds every field of text below d: a path is what leads there.
func stringsOf(d protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor,
	found *[][]protoreflect.FieldDescriptor) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		at := append(append([]protoreflect.FieldDescriptor(nil), path...), f)
		switch {
		case f.IsMap():
		case f.Message() != nil && len(path) < 3:
			stringsOf(f.Message(), at, found)
		case f.Kind() == protoreflect.StringKind:
			*found = append(*found, at)
		}
	}
}

// put makes a request whose field at path says s, about a VM that does not exist.
func put(d protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor, s string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Message() != nil && f.Message().Name() == "WakeRequest" {
			vmIn(m.Mutable(f).Message())
		}
	}
	vmIn(m)
	var at protoreflect.Message = m
	for _, f := range path[:len(path)-1] {
		if f.IsList() {
			at = at.Mutable(f).List().AppendMutable().Message()
			vmIn(at)
			continue
		}
		at = at.Mutable(f).Message()
	}
	if f := path[len(path)-1]; f.IsList() {
		at.Mutable(f).List().Append(protoreflect.ValueOfString(s))
	} else if s == "" {
		at.Clear(f)
	} else {
		at.Set(f, protoreflect.ValueOfString(s))
	}
	return m
}

// vmIn names a VM that does not exist where m has a VM, and fills in what a call needs.
func vmIn(m protoreflect.Message) {
	for name, value := range map[protoreflect.Name]string{"operation": "nope", "node": "rogue", "uid": "u",
		"place":  "p",
		"digest": dig("none"), "to": "third", "from": dig("none"), "what": "w", "image": "i"} {
		f := m.Descriptor().Fields().ByName(name)
		if f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			if name == "to" && f.Parent().Name() == "DiffRequest" {
				value = dig("none")
			}
			m.Set(f, protoreflect.ValueOfString(value))
		}
	}
	f := m.Descriptor().Fields().ByName("vm")
	if f == nil {
		return
	}
	vm := m.Mutable(f).Message()
	vm.Set(vm.Descriptor().Fields().ByName("namespace"), protoreflect.ValueOfString("default"))
	vm.Set(vm.Descriptor().Fields().ByName("id"), protoreflect.ValueOfString("missing"))
}

// raw is the request on the wire.
func raw(t *testing.T, m proto.Message) proto.Message {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := &emptypb.Empty{}
	out.ProtoReflect().SetUnknown(bytes.ReplaceAll(data, []byte(spot), []byte(invalidUTF8)))
	return out
}

// serveLocal serves what godwitd's socket does, with the real services of the node and a real engine.
func (a *arena) serveLocal(t *testing.T) {
	t.Helper()
	records := controller.New(a.store).Under(a.policy)
	e := engine.New(engine.Parts{Records: records}, engine.Options{Node: "first"})
	t.Cleanup(e.Close)
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	nodev1.RegisterRecordsService(srv, records)
	nodev1.RegisterStoreService(srv, controller.NewIncarnations(a.store, a.store, "first", func() []string {
		return nil
	}, nil))
	nodev1.RegisterMovesService(srv, &Service{Self: "first", Records: records, Engine: e, Cluster: a.members})
	cfg := config.Default()
	cfg.Registry.Repository = "reg/vms"
	nodev1.RegisterPodsService(srv, noPods{})
	nodev1.RegisterNodeService(srv, &node.Service{Config: cfg, Records: records, Engine: e})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = controller.ServeLocal(ctx, srv, l) })
	t.Cleanup(func() { cancel(); _ = srv.Close(); wg.Wait() })
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a.local = ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = a.local.Close() })
}

// Each call of each service refuses each forbidden kind of name in each of its fields, by the field's name. It
// refuses them from the host's root as from a node, and the store is what it was.
func TestForbiddenNames(t *testing.T) {
	a := newArena(t, controller.Policy{Repositories: []string{"reg/vms"}})
	a.serveLocal(t)
	before, tried := a.all(t), 0
	for _, call := range calls() {
		service, method, _ := strings.Cut(call, ".")
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("godwit.node.v1." + service))
		if err != nil || call == "Moves.Watch" { // of the shim or the guest; a stream that keeps nothing
			continue
		}
		clients := map[string]*ttrpc.Client{"root": a.local, "a node": a.rogue}
		switch service {
		case "Node":
			delete(clients, "a node")
		case "Peer":
			clients = map[string]*ttrpc.Client{"the controller": a.order}
		}
		in := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method)).Input()
		var paths [][]protoreflect.FieldDescriptor
		stringsOf(in, nil, &paths)
		for _, path := range paths {
			for kind, said := range forbidden {
				if skips(call, service, path, kind) {
					continue
				}
				for who, client := range clients {
					tried++
					a.refuses(t, client, who+": "+call, kind, path, raw(t, put(in, path, said)))
				}
			}
		}
		if now := a.all(t); now != before {
			t.Fatalf("%s has changed the store:\n%s\nbefore:\n%s", call, now, before)
		}
	}
	if tried < 1000 {
		t.Errorf("%d tries: the walk misses some", tried)
	}
}

// skips says which kinds a field takes.
func skips(call, service string, path []protoreflect.FieldDescriptor, kind string) bool {
	last := path[len(path)-1]
	vm := last.Parent().Name() == "VM"
	switch {
	case kind == "utf-8":
		return false
	case listed(free, last):
		return true
	case vm && kind == "long":
		return false
	case vm: // a VM inside an operation or a snapshot is not looked at: the record's own counts
		named := len(path) == 2 || path[0].Name() == "wake" || path[0].Name() == "held"
		return !named || service == "Peer" || contains(filters, call)
	}
	return kind == "up" && !listed(names, last)
}

func contains(all []string, s string) bool {
	for _, one := range all {
		if one == s {
			return true
		}
	}
	return false
}

func (a *arena) refuses(t *testing.T, client *ttrpc.Client, call, kind string, path []protoreflect.FieldDescriptor,
	req proto.Message) {
	t.Helper()
	_, name, _ := strings.Cut(call, ": ")
	err := ask(t.Context(), client, name, req)
	field := path[len(path)-1]
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), string(field.Name())) {
		t.Errorf("%s: %s in %s: %.300v, want an invalid argument that names the field", call, kind, field.FullName(), err)
		return
	}
	if len(err.Error()) > 3000 || strings.ContainsAny(err.Error(), "\x1b\x00") {
		t.Errorf("%s: %s in %s: the error repeats it: %d bytes", call, kind, field.FullName(), len(err.Error()))
	}
}

// A call without what it is about is refused by the name of the field.
func TestEmptyNames(t *testing.T) {
	a := newArena(t, controller.Policy{Repositories: []string{"reg/vms"}})
	a.serveLocal(t)
	before := a.all(t)
	for call, fields := range map[string][]string{
		"Records.Own": {"node"}, "Records.Disown": {"node"}, "Records.Operation": {"id"}, "Records.Advance": {"operation"},
		"Records.Commit": {"operation"},
		"Records.Finish": {"operation"}, "Records.Retry": {"operation"}, "Records.Reclaim": {"operation"},
		"Records.Clear": {"digest"},
		"Store.Retire":  {"node"}, "Store.Report": {"node"}, "Moves.Get": {"operation"}, "Moves.Abort": {"operation"},
		"Moves.Cordon": {"node"}, "Moves.Drain": {"node"},
		"Node.Status": {"operation"}, "Node.Drop": {"digest"}, "Node.Inspect": {"digest"}, "Node.Verify": {"digest"},
		"Node.Copy": {"digest", "to"}, "Node.Diff": {"from", "to"},
		"Node.Golden": {"image"}, "Node.GoldenDrop": {"what"}, "Node.TemplateRemove": {"what"},
		"Node.TemplatePush": {"what", "to"},
	} {
		a.wantsAll(t, call, fields)
	}
	for _, call := range []string{
		"Records.Get", "Records.Ensure", "Records.Own", "Records.Open", "Records.Advance", "Records.Commit", "Records.Retry",
		"Records.Finish", "Records.Disown", "Records.Schedule",
		"Records.Delete", "Records.Reclaim", "Records.Remove", "Records.Trim", "Records.Clear", "Moves.Migrate",
		"Moves.Recover", "Node.Hibernate", "Node.Wake", "Node.Checkpoint",
		"Node.Schedule", "Node.Delete", "Node.Recorded", "Node.Forget", "Node.Snapshots",
	} {
		a.wantsAll(t, call, []string{"vm.namespace", "vm.id"})
	}
	if now := a.all(t); now != before {
		t.Fatalf("the store has changed:\n%s\nbefore:\n%s", now, before)
	}
}

func (a *arena) wantsAll(t *testing.T, call string, fields []string) {
	t.Helper()
	service, method, _ := strings.Cut(call, ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("godwit.node.v1." + service))
	if err != nil {
		t.Fatal(err)
	}
	in := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method)).Input()
	for _, field := range fields {
		var path []protoreflect.FieldDescriptor
		at := in
		for _, name := range strings.Split(field, ".") {
			path = append(path, at.Fields().ByName(protoreflect.Name(name)))
			at = path[len(path)-1].Message()
		}
		a.refuses(t, a.local, "root: "+call, "nothing", path, raw(t, put(in, path, "")))
	}
}

// A record that a build before has made under a forbidden name is listed and removed over the wire as others are.
func TestOldNamesGo(t *testing.T) {
	a := newArena(t, controller.Policy{})
	a.serveLocal(t)
	old := &nodev1.VM{Namespace: "default", Id: "a\x1b[2J/../b"}
	if _, err := a.store.Apply(t.Context(), old, 0,
		transition.Change{Record: &nodev1.Record{Vm: old, Uid: "u", Generation: 1}}); err != nil {
		t.Fatal(err)
	}
	if text := a.all(t); !strings.Contains(text, `\x1b[2J/../b`) && !strings.Contains(text, `\033[2J/../b`) {
		t.Errorf("it is not listed:\n%s", text)
	}
	if err := ask(t.Context(), a.local, "Node.Recorded", &nodev1.GetRequest{Vm: old}); err != nil {
		t.Error(err)
	}
	if err := ask(t.Context(), a.local, "Node.Forget", &nodev1.ForgetRequest{Vm: old, Force: true,
		KeepSnapshots: true}); err != nil {
		t.Error(err)
	}
	if err := ask(t.Context(), a.local, "Records.Get", &nodev1.GetRequest{Vm: old}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("it is still there: %v", err)
	}
}
