package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
)

// The L2 that joins the nodes is one subnet: a VM keeps its address when it moves. Each
// node hands out its own part of it and accepts the others' on request.
const (
	Gateway = "10.88.0.1" // the wire itself, where the registry listens
	subnet  = "10.88.0.0/16"
	bridge  = "gw0" // in every node; CNI joins containers to it
)

func nodeAddress(i int) string { return fmt.Sprintf("10.88.0.%d", i+2) }

// startWire makes the namespace of the L2: a bridge that every node is joined to.
func (h *Harness) startWire(ctx context.Context) error {
	wire, err := startNodeInit(h.cgroup("wire"))
	if err != nil {
		return fmt.Errorf("make wire: %w", err)
	}
	h.wire = wire
	h.onClose(wire.close)
	return wire.ip(ctx,
		"link set lo up",
		"link add br0 type bridge",
		"addr add "+Gateway+"/16 dev br0",
		"link set br0 up")
}

// join connects a node's bridge to the wire.
func (h *Harness) join(ctx context.Context, n *Node) error {
	port := fmt.Sprintf("port%d", n.index)
	if err := h.wire.ip(ctx,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", port, n.holder.pid()),
		"link set "+port+" master br0 up"); err != nil {
		return err
	}
	return n.holder.ip(ctx,
		"link set lo up",
		// An address of its own: else the bridge takes one from its ports, another one with each VM that comes or goes, and
		// its neighbours' frames reach no host.
		fmt.Sprintf("link add %s address 02:67:6f:64:00:%02x type bridge", bridge, n.index+2),
		"link set eth0 master "+bridge+" up",
		"addr add "+n.Address+"/16 dev "+bridge,
		"link set "+bridge+" up",
		"route add default via "+Gateway)
}

// absentMAC is an address of the L2 that no port has.
const absentMAC = "02:00:00:00:00:01"

// Cut makes two nodes lose whatever one sends to the other, until heal: nothing is
// refused, and nothing comes. VMs are not concerned.
func (n *Node) Cut(ctx context.Context, other *Node) (heal func() error, err error) {
	one, err := n.Lose(ctx, other.Address)
	two, oerr := other.Lose(ctx, n.Address)
	return func() error { return errors.Join(one(), two()) }, errors.Join(err, oerr)
}

// Lose makes whatever the node sends to an address of the wire get lost, until heal; what comes
// from there arrives. VMs are not concerned.
func (n *Node) Lose(ctx context.Context, address string) (heal func() error, err error) {
	ctx = context.WithoutCancel(ctx)
	heal = sync.OnceValue(func() error { return n.holder.ip(ctx, "neigh del "+address+" dev "+bridge) })
	return heal, n.holder.ip(ctx, "neigh replace "+address+" lladdr "+absentMAC+" nud permanent dev "+bridge)
}

// Unplug takes the node off the wire, with its VMs. Plug brings the node back alone: the VMs that
// it had stay cut off from everybody.
func (n *Node) Unplug(ctx context.Context) (plug func() error, err error) {
	plug = sync.OnceValue(func() error {
		ctx := context.WithoutCancel(ctx)
		ports, err := n.Run(ctx, "ip", "-oneline", "link", "show", "master", bridge)
		if err != nil {
			return err
		}
		for line := range strings.Lines(ports) {
			port, _, _ := strings.Cut(strings.Fields(line)[1], "@") // "7: veth1@if2: ..."
			if port = strings.TrimSuffix(port, ":"); port == "eth0" {
				continue
			}
			if err := n.holder.ip(ctx, "link set "+port+" down"); err != nil {
				return err
			}
		}
		return n.holder.ip(ctx, "link set eth0 up")
	})
	return plug, n.holder.ip(ctx, "link set eth0 down")
}

// ip runs ip(8) in the holder's network namespace alone: process ids in its arguments are
// those of the host.
func (h *nodeInit) ip(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.proc("ns", "net"), "ip"},
			strings.Fields(c)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}

// Listen listens on the wire.
func (h *Harness) Listen(address string) (l net.Listener, err error) {
	err = h.wire.enter(func() error { l, err = net.Listen("tcp4", address); return err })
	return l, err
}

// ListenPacket opens a UDP socket on the wire.
func (h *Harness) ListenPacket(address string) (c net.PacketConn, err error) {
	err = h.wire.enter(func() error { c, err = net.ListenPacket("udp4", address); return err })
	return c, err
}

// Dial connects from the wire; address must be an IP address with a port.
func (h *Harness) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = h.wire.enter(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
	return c, err
}
