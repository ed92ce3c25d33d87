package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Offsets of what the kernel's filter knows of a packet in addition to its bytes.
const (
	adProtocol = 0xfffff000 // SKF_AD_OFF + SKF_AD_PROTOCOL
	adType     = 0xfffff004 // SKF_AD_OFF + SKF_AD_PKTTYPE
)

// Sniff opens a socket that hears each datagram to a UDP port that comes out of a node, at
// the node's port of the wire: what it reads begins with the IP header, and the kernel
// says when it came (SCM_TIMESTAMPNS).
func (h *Harness) Sniff(n *Node, port uint16) (*os.File, error) { return h.sniff(n, datagrams(port)) }

// SniffARP opens a socket that hears each ARP packet that comes out of a node, without the
// Ethernet header.
func (h *Harness) SniffARP(n *Node) (*os.File, error) {
	return h.sniff(n, []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: adType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OUTGOING, Jt: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: adProtocol},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_ARP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	})
}

func (h *Harness) sniff(n *Node, code []unix.SockFilter) (*os.File, error) {
	var fd int
	err := h.wire.enter(func() (err error) {
		fd, err = sniff(fmt.Sprintf("port%d", n.index), code)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen at the port of node %s: %w", n.Name, err)
	}
	return os.NewFile(uintptr(fd), "sniffer"), nil
}

// SniffLink is Sniff at a link of the caller's own network namespace.
func SniffLink(link string, port uint16) (*os.File, error) {
	fd, err := sniff(link, datagrams(port))
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", link, err)
	}
	return os.NewFile(uintptr(fd), "sniffer"), nil
}

// SniffAll is Sniff of every node, in their order; end it with CloseAll.
func (h *Harness) SniffAll(port uint16) (all []*os.File, err error) {
	for _, n := range h.nodes {
		f, err := h.Sniff(n, port)
		if err != nil {
			CloseAll(all)
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// CloseAll closes files that were only read.
func CloseAll(all []*os.File) {
	for _, f := range all {
		_ = f.Close()
	}
}

// Sent answers how many bytes the node has sent over the wire.
func (n *Node) Sent(ctx context.Context) (uint64, error) {
	out, err := n.Run(ctx, "ip", "-j", "-s", "link", "show", "eth0")
	if err != nil {
		return 0, err
	}
	var links []struct {
		Stats64 struct{ TX struct{ Bytes uint64 } }
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("read statistics of node %s: %w: %q", n.Name, err, out)
	}
	return links[0].Stats64.TX.Bytes, nil
}

// sniff opens one on a link of this thread's network namespace, for what a filter lets pass.
func sniff(link string, code []unix.SockFilter) (_ int, err error) {
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return 0, fmt.Errorf("filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return 0, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index})
}

// datagrams lets those to a UDP port pass. Only what matches reaches a socket: a move's stream
// passes here too.
func datagrams(port uint16) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: adType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OUTGOING, Jt: 8},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: adProtocol},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IP, Jf: 6},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}
