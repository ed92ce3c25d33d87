package tracking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/vmm/process"
)

// Subcommand of a program that runs Child.
const Subcommand = "tracked"

// Orders to the child are one of these and the number of a page. It answers with the same
// byte, or with the byte that it has read.
const (
	orderWrite = 'w'
	orderRead  = 'r'
	orderReady = '?'
)

const (
	pageSize = 4096
	pages    = 96
)

// Child is the process whose pages are tracked: it has mapped descriptor 3, and does what
// is ordered on descriptor 4 until that is closed.
func Child() error {
	mem, err := unix.Mmap(process.FirstFD, 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	orders := os.NewFile(process.FirstFD+1, "orders")
	defer orders.Close()
	for value := byte(1); ; value++ {
		var order [2]byte
		if _, err := io.ReadFull(orders, order[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		at := int(order[1]) * pageSize
		if at >= len(mem) {
			return fmt.Errorf("page %d: there are %d", order[1], pages)
		}
		answer := order[0]
		switch order[0] {
		case orderWrite:
			mem[at] = value
		case orderRead:
			answer = mem[at]
		}
		if _, err := orders.Write([]byte{answer}); err != nil {
			return err
		}
	}
}

// child is its other end.
type child struct {
	proc   *process.Process
	ram    *os.File
	orders net.Conn
}

func startChild(ctx context.Context, command []string, userfault, waits bool) (_ *child, err error) {
	fd, err := unix.MemfdCreate("tracked", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file: %w", err)
	}
	c := &child{ram: os.NewFile(uintptr(fd), "tracked")}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	if err := c.ram.Truncate(pages * pageSize); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "orders"), os.NewFile(uintptr(pair[1]), "orders")
	defer mine.Close()
	defer theirs.Close()
	if c.orders, err = net.FileConn(mine); err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := &process.Files{}
	defer files.Close()
	for _, f := range []*os.File{c.ram, theirs} {
		if _, err := files.Pass(f); err != nil {
			return nil, err
		}
	}
	c.proc, err = process.Launch{Args: command, Env: os.Environ(), Log: null, FDs: files.FDs(), Userfault: userfault,
		Waits: waits}.Start()
	if err != nil {
		return nil, err
	}
	return c, c.proc.Untracked
}

// order has the child do something with a page.
func (c *child) order(ctx context.Context, what byte, page int) (byte, error) {
	deadline, _ := ctx.Deadline()
	if err := c.orders.SetDeadline(deadline); err != nil {
		return 0, err
	}
	if _, err := c.orders.Write([]byte{what, byte(page)}); err != nil {
		return 0, err
	}
	var answer [1]byte
	_, err := io.ReadFull(c.orders, answer[:])
	return answer[0], err
}

// endBound is how long the end of the child may take.
const endBound = 5 * time.Second

// close ends the child and waits until it is gone.
func (c *child) close(ctx context.Context) error {
	var errs []error
	if c.orders != nil {
		c.orders.Close()
	}
	if c.proc != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
		defer cancel()
		errs = append(errs, c.proc.Kill(), c.proc.Gone(ctx))
		c.proc.Status()
		errs = append(errs, c.proc.Close())
	}
	return errors.Join(append(errs, c.ram.Close())...)
}
