package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	// MaxAnswer is what ttrpc takes of one message, less the envelope. A longer one ends the
	// connection, and with it every other call on it.
	MaxAnswer = 4<<20 - 4<<10

	// PartSize is of a part of a list: the rest is asked for again, and no call waits long for it.
	PartSize = 1 << 20

	// read is how much is read for a part: more than goes into it, so that the rest shows. A
	// record may be a few bytes longer in an answer than in the store.
	read = PartSize + PartSize/4
)

// fits refuses an answer that no message takes.
func fits(method string, resp any) error {
	m, ok := resp.(proto.Message)
	if !ok {
		return nil
	}
	if n := proto.Size(m); n > MaxAnswer {
		return fmt.Errorf("answer %s: it has %d bytes, a message at most %d: ask for one VM or one namespace: %w", method, n,
			MaxAnswer, errdefs.ErrResourceExhausted)
	}
	return nil
}

// Part is how many of all, from the first one on, go into one answer: one at least.
func Part[M proto.Message](all []M) int {
	size := 0
	for i, m := range all {
		if size += proto.Size(m); size > PartSize && i > 0 {
			return i
		}
	}
	return len(all)
}

// after is the part of all that comes after a place. It answers the place of the part's last one too, if more
// follows.
func after[M proto.Message](all []M, last string, of func(M) string) (some []M, next string) {
	all = slices.DeleteFunc(all, func(m M) bool { return of(m) <= last })
	slices.SortFunc(all, func(a, b M) int { return strings.Compare(of(a), of(b)) })
	n := Part(all)
	if n < len(all) {
		next = of(all[n-1])
	}
	return all[:n], next
}

// place orders what belongs to a VM, as the stores do.
func place(vm *nodev1.VM, of ...string) string {
	return strings.Join(append([]string{vm.GetNamespace(), vm.GetId()}, of...), "\x00")
}
