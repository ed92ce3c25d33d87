package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/pki"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// drive is a node's engine, which remembers what it was ordered.
type drive struct{ got []string }

func (d *drive) order(kind string, req interface{ GetOperation() string }) (*nodev1.StatusResponse, error) {
	d.got = append(d.got, kind+" "+req.GetOperation())
	if req.GetOperation() == "held" {
		return nil, errdefs.ErrFailedPrecondition
	}
	return &nodev1.StatusResponse{Operation: &nodev1.Operation{Id: req.GetOperation()}}, nil
}

func (d *drive) Wake(_ context.Context, req *nodev1.WakeRequest) (*nodev1.StatusResponse, error) {
	return d.order("wake", req)
}

func (d *drive) Hibernate(_ context.Context, req *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	return d.order("hibernate", req)
}

func (d *drive) Checkpoint(_ context.Context, req *nodev1.CheckpointRequest) (*nodev1.StatusResponse, error) {
	return d.order("checkpoint", req)
}

// The controller orders a hibernate or a checkpoint of a node's engine, over mutual TLS, by a name that it gives. A
// node is refused, and so is an order without a name: said again it would be another one.
func TestOrdersOfTheController(t *testing.T) {
	first, node := cluster(t)
	srv, err := controller.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	d := &drive{}
	nodev1.RegisterPeerService(srv, &Server{Node: "n1", Engine: d})
	l := listen(t)
	go func() { _ = controller.ServePeer(t.Context(), srv, l, node) }()
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	for kind, give := range map[string]func(nodev1.PeerService, string) (*nodev1.StatusResponse, error){
		"hibernate": func(p nodev1.PeerService, id string) (*nodev1.StatusResponse, error) {
			return p.Hibernate(t.Context(), &nodev1.HibernateRequest{Vm: vm, Operation: id})
		},
		"checkpoint": func(p nodev1.PeerService, id string) (*nodev1.StatusResponse, error) {
			return p.Checkpoint(t.Context(), &nodev1.CheckpointRequest{Vm: vm, Operation: id})
		},
	} {
		as := func(who *pki.Identity, id string) (*nodev1.StatusResponse, error) {
			p := &Peers{Registry: nodes{l.Addr().String()}, Self: "first", TLS: func(name string) (*tls.Config, error) {
				return who.ClientOf(name), nil
			}}
			t.Cleanup(func() { _ = p.Close() })
			peer, err := p.Peer("n1")
			if err != nil {
				t.Fatal(err)
			}
			return give(peer, id)
		}
		d.got = nil
		if status, err := as(first, "op"); err != nil || status.GetOperation().GetId() != "op" || len(d.got) != 1 ||
			d.got[0] != kind+" op" {
			t.Errorf("%s: %v, %v, ordered %q", kind, status, err, d.got)
		}
		if _, err := as(first, "held"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, refused: %v", kind, err)
		}
		d.got = nil
		if _, err := as(first, ""); !errdefs.IsInvalidArgument(err) || d.got != nil {
			t.Errorf("%s without a name: %v, ordered %q", kind, err, d.got)
		}
		var link *engine.LinkError
		if _, err := as(node, "op"); !errors.As(err, &link) || d.got != nil {
			t.Errorf("%s by a node: %v, ordered %q", kind, err, d.got)
		}
	}
}
