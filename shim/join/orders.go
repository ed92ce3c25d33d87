package join

import (
	"context"
	"net"

	"github.com/containerd/ttrpc"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
)

// orders asks godwitd, over a connection for each call: they are few.
type orders struct{ socket string }

func (o orders) call(ctx context.Context, do func(nodev1.NodeService) error) error {
	return o.connect(ctx, func(c *ttrpc.Client) error { return do(nodev1.NewNodeClient(c)) })
}

func (o orders) connect(ctx context.Context, do func(*ttrpc.Client) error) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", o.socket)
	if err != nil {
		return record.Unreachable(o.socket, err)
	}
	client := record.DefaultGuard.Client(conn, o.socket)
	defer client.Close()
	return record.FromWire(do(client))
}

func (o orders) Hibernate(ctx context.Context, req *nodev1.HibernateRequest) (r *nodev1.StatusResponse, err error) {
	err = o.call(ctx, func(n nodev1.NodeService) error { r, err = n.Hibernate(ctx, req); return err })
	return r, err
}

func (o orders) Resolve(ctx context.Context, req *nodev1.ResolveRequest) (r *nodev1.ResolveResponse, err error) {
	err = o.connect(ctx, func(c *ttrpc.Client) error { r, err = nodev1.NewPodsClient(c).Resolve(ctx, req); return err })
	return r, err
}

func (o orders) Stopping(ctx context.Context, req *nodev1.StoppingRequest) (r *nodev1.StoppingResponse, err error) {
	err = o.connect(ctx, func(c *ttrpc.Client) error { r, err = nodev1.NewPodsClient(c).Stopping(ctx, req); return err })
	return r, err
}

func (o orders) Login(ctx context.Context, req *nodev1.LoginRequest) (r *nodev1.LoginResponse, err error) {
	err = o.connect(ctx, func(c *ttrpc.Client) error { r, err = nodev1.NewPodsClient(c).Login(ctx, req); return err })
	return r, err
}

func (o orders) Checkpoint(ctx context.Context, req *nodev1.CheckpointRequest) (r *nodev1.StatusResponse, err error) {
	err = o.call(ctx, func(n nodev1.NodeService) error { r, err = n.Checkpoint(ctx, req); return err })
	return r, err
}

func (o orders) Status(ctx context.Context, req *nodev1.StatusRequest) (r *nodev1.StatusResponse, err error) {
	err = o.call(ctx, func(n nodev1.NodeService) error { r, err = n.Status(ctx, req); return err })
	return r, err
}

func (o orders) Image(ctx context.Context, namespace, container string) (digest string, err error) {
	err = o.call(ctx, func(n nodev1.NodeService) error {
		r, err := n.ContainerImage(ctx, &nodev1.ContainerImageRequest{Namespace: namespace, Container: container})
		digest = r.GetDigest()
		return err
	})
	return digest, err
}

func (o orders) Expected(ctx context.Context, vm *nodev1.VM) (r *nodev1.ExpectedResponse, err error) {
	err = o.call(ctx, func(n nodev1.NodeService) error {
		r, err = n.Expected(ctx, &nodev1.ExpectedRequest{Vm: vm})
		return err
	})
	return r, err
}
