package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/go-openapi/runtime"
	transport "github.com/go-openapi/runtime/client"
	"github.com/go-openapi/strfmt"

	"godwit.dev/godwit/vmm/cloudhypervisor/api/client/operations"
	"godwit.dev/godwit/vmm/cloudhypervisor/api/models"
)

// basePath is that of api.yaml.
const basePath = "/api/v1"

// client speaks to one VMM. A call has a connection of its own, because a reused one may be one that the VMM has
// forgotten. It has no limit of time but its context's.
type client struct {
	socket  string
	ops     operations.ClientService
	version string
	major   int // 0 before ping
}

func newClient(socket string) *client {
	rt := transport.NewWithClient("localhost", basePath, []string{"http"}, &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
	})
	rt.Debug = false // whatever the environment says: a body may name what is private
	rt.Consumers = map[string]runtime.Consumer{"*/*": runtime.ConsumerFunc(consume)}
	return &client{socket: socket, ops: operations.New(rt, strfmt.Default)}
}

// ping asks for the version, which decides what may be sent from then on.
func (c *client) ping(ctx context.Context) error {
	ok, err := c.ops.PingContext(ctx, operations.NewPingParamsWithTimeout(0))
	if err != nil {
		return failed("vmm.ping", err)
	}
	n, err := major(ok.Payload.Version)
	if err != nil {
		return fmt.Errorf("vmm.ping: %w", err)
	}
	c.version, c.major = ok.Payload.Version, n
	return nil
}

func (c *client) create(ctx context.Context, vm *models.VM) error {
	if err := c.fits(vm); err != nil {
		return fmt.Errorf("vm.create: %w", err)
	}
	_, err := c.ops.CreateContext(ctx, operations.NewCreateParamsWithTimeout(0).WithConfig(vm))
	return failed("vm.create", err)
}

func (c *client) boot(ctx context.Context) error {
	_, err := c.ops.BootContext(ctx, operations.NewBootParamsWithTimeout(0))
	return failed("vm.boot", err)
}

func (c *client) pause(ctx context.Context) error {
	_, err := c.ops.PauseContext(ctx, operations.NewPauseParamsWithTimeout(0))
	return failed("vm.pause", err)
}

func (c *client) resume(ctx context.Context) error {
	_, err := c.ops.ResumeContext(ctx, operations.NewResumeParamsWithTimeout(0))
	return failed("vm.resume", err)
}

func (c *client) powerButton(ctx context.Context) error {
	_, err := c.ops.PowerButtonContext(ctx, operations.NewPowerButtonParamsWithTimeout(0))
	return failed("vm.power-button", err)
}

// info is NotFound while there is no VM.
func (c *client) info(ctx context.Context) (*models.Info, error) {
	ok, err := c.ops.InfoContext(ctx, operations.NewInfoParamsWithTimeout(0))
	if err != nil {
		return nil, failed("vm.info", err)
	}
	return ok.Payload, nil
}

func (c *client) snapshot(ctx context.Context, dir string) error {
	_, err := c.ops.SnapshotContext(ctx, operations.NewSnapshotParamsWithTimeout(0).
		WithConfig(&models.Snapshot{DestinationURL: "file://" + dir}))
	return failed("vm.snapshot", err)
}

func (c *client) removeDevice(ctx context.Context, id string) error {
	_, err := c.ops.RemoveDeviceContext(ctx, operations.NewRemoveDeviceParamsWithTimeout(0).
		WithDevice(&models.Device{ID: id}))
	return failed("vm.remove-device", err)
}

// restore makes the VM of the files in dir. Its paused vCPUs stay so.
func (c *client) restore(ctx context.Context, dir string, owners []*models.NetFDs, fds []int) error {
	return c.sendFDs(ctx, "/vm.restore", &models.Restore{SourceURL: "file://" + dir, NetFds: owners}, fds)
}

func (c *client) addNet(ctx context.Context, n *models.Net, fd int) error {
	if err := c.fits(n); err != nil {
		return fmt.Errorf("vm.add-net: %w", err)
	}
	return c.sendFDs(ctx, "/vm.add-net", n, []int{fd})
}

func (c *client) addDisk(ctx context.Context, d *models.Disk) error {
	if err := c.fits(d); err != nil {
		return fmt.Errorf("vm.add-disk: %w", err)
	}
	_, _, err := c.ops.AddDiskContext(ctx, operations.NewAddDiskParamsWithTimeout(0).WithConfig(d))
	return failed("vm.add-disk", err)
}

// refused is an answer that says no.
type refused interface {
	error
	Code() int
	GetPayload() []string
}

// failed tells what went wrong in call: the VMM refused, or did not answer. A refused call has changed nothing, but for
// vm.pause. After the other kind that is not known.
func failed(call string, err error) error {
	var no refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &no):
		return &refusal{call: call, status: no.Code(), reasons: no.GetPayload()}
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: Cloud Hypervisor does not answer: %w", call, err)
	}
	return fmt.Errorf("%s: %w: %w", call, errdefs.ErrUnavailable, err)
}
