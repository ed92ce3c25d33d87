package shim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot/stream"
	"godwit.dev/godwit/snapshot/worker"
)

// arrival is a VM on its way here. Create makes it. While its task is CREATED the pages come, the network is joined and
// the VMM started. At the end the device state is all that is left to load. Start takes over what it has made.
type arrival struct {
	vm        *VM
	ref       *machinev1.Ref
	timeoutMS int64 // of the order; 0: the node's
	ends      stream.Ends
	socket    string
	listener  *net.UnixListener

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when run is over: nothing works for it any more

	at        arrivalStage
	start     *starting
	made      *steps.Undo
	disks     []worker.Disk // that come along
	announced *spec.Pod     // as it was offered; nil: the VM is no pod
	state     *os.File
	loading   time.Duration  // that the VMM took for it
	launching sync.WaitGroup // of the VMM; and of drafts of the journal
	launched  chan struct{}  // closed when the VMM has started, or has not: launchErr
	launchErr error
	fail      context.CancelCauseFunc // ends what comes
}

// arrivalStage is how far the orders of the worker have come. It may have been taken over by what it reads, and each
// order has its place.
type arrivalStage int

const (
	untouched arrivalStage = iota // no order has come
	completed
	loading
)

// next takes an order that has its place after a stage.
func (a *arrival) next(after, now arrivalStage) error {
	if a.at != after {
		return fmt.Errorf("an order of the receiving worker came twice, or too early (%d after %d): %w", now, a.at,
			errdefs.ErrFailedPrecondition)
	}
	a.at = now
	return nil
}

// listenForSource makes the place where the source's connection is handed over.
func (c *creation) listenForSource(_ context.Context, u *steps.Undo) error {
	if c.decision.Action != record.Receive {
		return nil
	}
	vm := c.vm
	a := &arrival{vm: vm, done: make(chan struct{}), made: new(steps.Undo), start: &starting{vm: vm, task: c.task},
		announced: c.snapshot.Spec.Pod}
	a.ref = &machinev1.Ref{Operation: c.intent.Operation, Attempt: c.intent.Attempt, Generation: c.next.Generation}
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	var err error
	if a.ends.Own, err = stream.NewIdentity(); err != nil {
		return err
	}
	a.ends.Peer, a.timeoutMS = c.intent.Stream.GetCertificate(), c.intent.Stream.GetTimeoutMs()
	a.ends.Channel = vm.host.Config.PagesChannel(vm.namespace, vm.id, hex.EncodeToString(token))
	if a.socket, err = vm.host.Config.PagesSocket(a.ends.Channel); err != nil {
		return err
	}
	left, err := vm.host.Config.PagesSockets(vm.namespace, vm.id)
	for _, path := range left {
		err = errors.Join(err, removeFile(path))
	}
	if err != nil {
		return err
	}
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.socket}); err != nil {
		return fmt.Errorf("await the source: %w", err)
	}
	if a.state, err = memoryFile("state"); err != nil {
		return errors.Join(err, a.listener.Close())
	}
	a.ctx, a.cancel = context.WithCancel(vm.life)
	vm.mu.Lock()
	vm.origin.arrival = a
	vm.mu.Unlock()
	u.Add("await no source", func(context.Context) error {
		vm.mu.Lock()
		vm.origin.arrival = nil
		vm.mu.Unlock()
		a.cancel()
		return errors.Join(a.listener.Close(), a.state.Close())
	})
	return nil
}

// incoming answers what the source is to be told.
func (vm *VM) incoming(ref *machinev1.Ref) (*machinev1.IncomingResponse, error) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	a, j := vm.origin.arrival, vm.journal.Load()
	if vm.state == Creating {
		return nil, fmt.Errorf("VM %s is being made: %w", vm.id, errdefs.ErrUnavailable)
	}
	if j.Refusal != "" && j.Operation == ref.GetOperation() && j.Attempt == ref.GetAttempt() {
		return nil, fmt.Errorf("VM %s cannot come here: %s: %w", vm.id, j.Refusal, errdefs.ErrFailedPrecondition)
	}
	if a == nil || !sameRef(a.ref, ref) || !j.Phase.Destination() {
		return nil, fmt.Errorf("operation %s, attempt %d, generation %d does not bring VM %s here (%s): %w",
			ref.GetOperation(), ref.GetAttempt(), ref.GetGeneration(), vm.id, j.Phase, errdefs.ErrFailedPrecondition)
	}
	return &machinev1.IncomingResponse{Channel: a.ends.Channel, Socket: a.socket, Certificate: a.ends.Own.Certificate,
		Digest: j.Digest}, nil
}

// run returns when Start or an end has taken over. What fails before that ends the task:
// this attempt never runs here, and the source hears so.
func (a *arrival) run() {
	err := a.awaitReady()
	if err == nil {
		select { // READY: a VMM that dies now leaves nothing to run
		case <-a.vm.machine.Done():
			err = fmt.Errorf("the VMM ended: %w", errdefs.ErrAborted)
		case <-a.ctx.Done():
		}
	}
	gone := a.ctx.Err() != nil
	a.cancel()
	if err := errors.Join(a.listener.Close(), a.state.Close()); err != nil && !errors.Is(err, net.ErrClosed) {
		a.vm.log.Warn("close what a move came by", "error", err)
	}
	close(a.done)
	if err != nil && !gone {
		a.vm.log.Error("receive VM: it will not run here", "operation", a.ref.GetOperation(), "attempt", a.ref.GetAttempt(),
			"error", err)
		_ = a.vm.journal.owe("why it will not run here", func(j *journal.Journal) { j.Refusal = err.Error() })
		a.vm.endCreated(a.vm.life, killed)
	}
}

// stop ends a run under way, and takes back what it has made.
func (a *arrival) stop() {
	a.cancel()
	<-a.done
	if err := a.made.Run(a.vm.life, undoBound); err != nil {
		a.vm.log.Warn("take an arrival back", "error", err)
	}
}

// awaitReady returns once the VM is READY.
func (a *arrival) awaitReady() error {
	ctx, cancel := context.WithTimeout(a.ctx, a.vm.host.operationBound(a.timeoutMS))
	defer cancel()
	if err := steps.Run(ctx, a.made, undoBound, []steps.Step{steps.New("attach network", a.start.attach)}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { a.listener.Close() })
	defer stop()
	for {
		conn, err := a.nextSource(ctx)
		if err != nil {
			return err
		}
		err = a.receive(ctx, conn)
		if conn.Close(); !errors.Is(err, worker.ErrStranger) || a.at != untouched {
			return err
		}
		a.vm.log.Warn("who connected is not the source", "operation", a.ref.GetOperation(), "error", err)
	}
}

// nextSource accepts a connection while ctx lasts. One that comes too late is closed: the source waits for a word.
func (a *arrival) nextSource(ctx context.Context) (*os.File, error) {
	conn, err := a.accept()
	if ctx.Err() == nil {
		return conn, err
	}
	if err == nil {
		conn.Close()
	}
	return nil, fmt.Errorf("no source came in time (--timeout, else timeouts.operation): %w", context.Cause(ctx))
}

// accept takes a connection's descriptor from godwitd.
func (a *arrival) accept() (*os.File, error) {
	for {
		c, err := a.listener.AcceptUnix()
		if err != nil {
			return nil, fmt.Errorf("await the source: %w: %w", err, errdefs.ErrUnavailable)
		}
		f, err := descriptor(c)
		c.Close()
		if err == nil {
			return f, nil
		}
		a.vm.log.Warn("take a connection over", "error", err)
	}
}

// descriptorBound is how long a connection is waited for that godwitd has announced.
const descriptorBound = time.Second

// descriptor reads one that was passed.
func descriptor(c *net.UnixConn) (*os.File, error) {
	if err := c.SetReadDeadline(time.Now().Add(descriptorBound)); err != nil {
		return nil, err
	}
	data, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(data, rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no descriptor came: %w", errdefs.ErrInvalidArgument)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("no descriptor came: %w", errdefs.ErrInvalidArgument)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "connection"), nil
}

// receive has a worker take the VM from the other end of conn.
func (a *arrival) receive(ctx context.Context, conn *os.File) error {
	ctx, a.fail = context.WithCancelCause(ctx)
	defer a.fail(nil)
	a.launched = make(chan struct{})
	defer a.launching.Wait()
	vm, j := a.vm, a.vm.journal.Load()
	files := &openFiles{}
	defer files.close()
	job := worker.ReceiveJob{Arrival: a, Conn: worker.Open(conn), Ends: a.ends, Ref: refOf(vm, a.ref, j),
		State: worker.Open(a.state)}
	ram, err := files.open(j.RAM, os.O_RDWR)
	if err != nil {
		return err
	}
	job.Spaces = append(job.Spaces, worker.SizedSpace{Name: ramSpace, Size: int64(j.Spec.Memory), File: worker.Open(ram)})
	a.disks = nil
	const fresh = os.O_CREATE | os.O_RDWR | os.O_TRUNC
	table, err := files.open(tableFile(j), fresh)
	if err != nil {
		return err
	}
	job.Table = worker.Open(table)
	for i, d := range j.Spec.Disks {
		path := j.Disks[i].Path
		if d.ReadOnly {
			blob := worker.SizedDisk{Blob: stream.Blob{ID: d.ID, Digest: digest.Digest(d.Digest), Size: d.Size}}
			if vm.host.Disks.Link(ctx, d.Digest, path) != nil { // the node lacks it
				f, err := files.open(path+partial, fresh)
				if err != nil {
					return err
				}
				blob.File = worker.Open(f)
				a.disks = append(a.disks, worker.Disk{ID: d.ID, File: blob.File})
			}
			job.Disks = append(job.Disks, blob)
			continue
		}
		f, err := files.open(path, fresh)
		if err != nil {
			return err
		}
		job.Spaces = append(job.Spaces, worker.SizedSpace{Name: diskSpace(len(job.Spaces) - 1), Size: d.Size,
			File: worker.Open(f)})
	}
	return vm.host.Snapshots(j.Cgroup).Receive(ctx, job, vm.op.progress.note)
}
