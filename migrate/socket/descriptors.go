package socket

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A message of ttrpc begins with ten bytes: its length and the number of its stream, big-endian, its
// kind and flags (containerd/ttrpc, PROTOCOL.md).
const (
	ttrpcHeader   = 10
	ttrpcRequest  = 1
	ttrpcResponse = 2
	ttrpcMost     = 4 << 20 // bytes of a message
)

// turnAwayBound is how long a client that is turned away may take to say what it wants.
const turnAwayBound = time.Second

// noDescriptors is what it is told.
const noDescriptors = "godwitd has no free file descriptors: raise LimitNOFILE of its service and restart it " +
	"(systemctl restart godwitd); its VMs run on"

// turnAway answers the first call of a connection that there are no descriptors for it, and closes it.
// Nothing of the call was done, and the daemon may do it later: Unavailable.
func turnAway(conn net.Conn) {
	defer conn.Close()
	if err := answerUnavailable(conn); err != nil {
		slog.Debug("turn a client away", "error", err)
	}
}

func answerUnavailable(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(turnAwayBound)); err != nil {
		return err
	}
	var head [ttrpcHeader]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if head[8] != ttrpcRequest || size > ttrpcMost {
		return nil
	}
	// or the answer would be lost with what was not read
	if _, err := io.CopyN(io.Discard, conn, int64(size)); err != nil {
		return err
	}
	data, err := proto.Marshal(&ttrpc.Response{Status: status.New(codes.Unavailable, noDescriptors).Proto()})
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(head[:], uint32(len(data)))
	head[8], head[9] = ttrpcResponse, 0
	_, err = conn.Write(append(head[:], data...))
	return err
}
