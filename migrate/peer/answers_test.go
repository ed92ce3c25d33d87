package peer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// hostile is a text that a node may answer: it steers a terminal, and is longer than any that is meant well. An
// operation has some 50 texts, and an answer 4 MiB.
var hostile = "a\x1b[2J\x00" + strings.Repeat("z", 70<<10)

// fill puts hostile into every field of m that holds text, and many entries into every list.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.Message() != nil && depth == 0:
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for range 5 {
				m.Mutable(f).List().Append(protoreflect.ValueOfString(hostile))
			}
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), depth-1)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(hostile))
		}
	}
}

// texts answers every string of m by its path.
func texts(m protoreflect.Message, path string, found map[string]string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				if f.Message() != nil {
					texts(v.List().Get(i).Message(), at, found)
				} else if f.Kind() == protoreflect.StringKind {
					found[fmt.Sprintf("%s[%d]", at, i)] = v.List().Get(i).String()
				}
			}
		case f.Message() != nil:
			texts(v.Message(), at, found)
		case f.Kind() == protoreflect.StringKind:
			found[at] = v.String()
		}
		return true
	})
}

// dishonestNode serves every call of Peer: with answer, or with err.
func dishonestNode(t *testing.T, err error) (p *Peers, methods protoreflect.MethodDescriptors, address string) {
	t.Helper()
	first, node := cluster(t)
	srv, serr := controller.NewServer()
	if serr != nil {
		t.Fatal(serr)
	}
	methods = nodev1.File_node_v1_node_proto.Services().ByName("Peer").Methods()
	desc := &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{}}
	for i := range methods.Len() {
		kind, kerr := protoregistry.GlobalTypes.FindMessageByName(methods.Get(i).Output().FullName())
		if kerr != nil {
			t.Fatal(kerr)
		}
		desc.Methods[string(methods.Get(i).Name())] = func(context.Context, func(any) error) (any, error) {
			m := kind.New()
			fill(m, 3)
			return m.Interface(), err
		}
	}
	srv.RegisterService("godwit.node.v1.Peer", desc)
	l := listen(t)
	go func() { _ = controller.ServePeer(t.Context(), srv, l, node) }()
	return peers(t, first, several{"n1": l.Addr().String()}), methods, l.Addr().String()
}

// asked makes a call of n1 by its name.
func asked(t *testing.T, p *Peers, method string) (proto.Message, error) {
	t.Helper()
	peer, err := p.Peer("n1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call, ok := byName(peer)[method]
	if !ok {
		t.Fatalf("%s has no row in this test", method)
	}
	return call(ctx)
}

type answer func(context.Context) (proto.Message, error)

func row[Q, R proto.Message](call func(context.Context, Q) (R, error), req Q) answer {
	return func(ctx context.Context) (proto.Message, error) { return call(ctx, req) }
}

func byName(p nodev1.PeerService) map[string]answer {
	ref := &nodev1.PeerRef{}
	return map[string]answer{
		"Check": row(p.Check, &nodev1.PeerCheckRequest{}), "Prepare": row(p.Prepare, &nodev1.PeerPrepareRequest{}),
		"Run": row(p.Run, ref), "Discard": row(p.Discard, ref), "Query": row(p.Query, ref), "Offer": row(p.Offer, ref),
		"Send": row(p.Send, &nodev1.PeerSendRequest{}), "Capture": row(p.Capture, &nodev1.PeerCaptureRequest{}),
		"Vote":  row(p.Vote, ref),
		"Abort": row(p.Abort, &nodev1.PeerAbortRequest{}), "Revert": row(p.Revert, &nodev1.PeerRevertRequest{}),
		"Release": row(p.Release, &nodev1.PeerReleaseRequest{}), "Wake": row(p.Wake, &nodev1.WakeRequest{}),
		"Hibernate":  row(p.Hibernate, &nodev1.HibernateRequest{}),
		"Checkpoint": row(p.Checkpoint, &nodev1.CheckpointRequest{}),
		"Tell":       row(p.Tell, &nodev1.PeerTellRequest{}),
		"Log":        row(p.Log, &nodev1.LogRequest{}),
	}
}

// What a node answers to any call of the controller is bounded and clean in every field, and no call is
// lost for it: what is too long is cut.
func TestAnswersAreBounded(t *testing.T) {
	p, methods, _ := dishonestNode(t, nil)
	seen := 0
	for i := range methods.Len() {
		method := string(methods.Get(i).Name())
		resp, err := asked(t, p, method)
		if err != nil {
			t.Errorf("%s: %v", method, err)
			continue
		}
		found := map[string]string{}
		texts(resp.ProtoReflect(), method, found)
		for at, s := range found {
			seen++
			most := 5000
			if strings.HasSuffix(at, "receipt") || strings.HasSuffix(at, "outcome") {
				most = 64 << 10
			} else if visible.Text(s) != s {
				t.Errorf("%s is not clean: %.60q", at, s)
			}
			if len(s) > most {
				t.Errorf("%s has %d bytes", at, len(s))
			}
		}
		if c, ok := resp.(*nodev1.PeerCheckResponse); ok && len(strings.Join(c.GetObstacles(), "; ")) > 10000 {
			t.Errorf("the obstacles are %d bytes together, for one reason of a record",
				len(strings.Join(c.GetObstacles(), "; ")))
		}
	}
	if seen < 50 {
		t.Errorf("%d texts were looked at: the walk misses some", seen)
	}
}

// The error that a node answers is bounded and clean too, with its class, and so is the record in it.
func TestErrorsAreBounded(t *testing.T) {
	rec := &nodev1.Record{}
	fill(rec.ProtoReflect(), 0)
	st, err := status.New(codes.FailedPrecondition, hostile).WithDetails(rec)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"a text": fmt.Errorf("%s: %w", hostile, errdefs.ErrFailedPrecondition),
		"a record": st.Err()} {
		p, _, _ := dishonestNode(t, err)
		_, err := asked(t, p, "Query")
		if !errdefs.IsFailedPrecondition(err) || len(err.Error()) > 5000 || visible.Text(err.Error()) != err.Error() ||
			!strings.Contains(err.Error(), `a\x1b[2J`) {
			t.Errorf("%s: %d bytes, %.100q", name, len(err.Error()), err)
		}
	}
}

// A VM is streamed to the address at which its destination has proved its name to the controller, wherever
// the destination says that it is.
func TestAddressIsWhereTheNodeWasReached(t *testing.T) {
	p, _, address := dishonestNode(t, nil)
	resp, err := asked(t, p, "Prepare")
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.(*nodev1.PeerPrepareResponse).GetAddress(); got != address {
		t.Errorf("%.60q, want %q", got, address)
	}
}
