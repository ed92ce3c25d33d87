package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/snapshot"
	"godwit.dev/godwit/snapshot/stream"
)

// SendJob streams a VM to another node.
type SendJob struct {
	Live     snapshot.Live `json:"-"` // called here, not in the worker
	Budget   time.Duration `json:"budget,omitempty"`
	Tracking *Tracking     `json:"tracking,omitempty"`
	// Ended is called here too, as snapshot.SendOptions has it; it may be nil.
	Ended func(digest string) `json:"-"`
	// Over is called once the worker has ended, which may be after the answer: until then it has the VM's memory
	// mapped. It may be nil.
	Over func() `json:"-"`

	Address   string       `json:"address"` // host:port
	Ends      stream.Ends  `json:"ends"`
	Bandwidth int64        `json:"bandwidth,omitempty"` // bytes a second; 0: no bound
	Ref       snapshot.Ref `json:"ref"`

	Spaces []Space `json:"spaces"`
	State  *File   `json:"state"`
	Table  *File   `json:"table,omitempty"` // page table of the VM; nil: it has none
	Disks  []Disk  `json:"disks,omitempty"`
}

// ReceiveJob takes a VM from the other end of a connection. The files are empty; a disk
// without one is there already.
type ReceiveJob struct {
	Arrival Arrival `json:"-"` // called here, not in the worker

	Conn *File        `json:"conn"`
	Ends stream.Ends  `json:"ends"`
	Ref  snapshot.Ref `json:"ref"`

	Spaces []SizedSpace `json:"spaces"`
	State  *File        `json:"state"`
	Table  *File        `json:"table,omitempty"` // becomes the page table, where the source has one
	Disks  []SizedDisk  `json:"disks,omitempty"`
}

// SizedSpace is a space whose size the Spec tells.
type SizedSpace struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	File *File  `json:"file"`
}

// SizedDisk is a read-only disk whose size the Spec tells.
type SizedDisk struct {
	stream.Blob
	File *File `json:"file,omitempty"`
}

// Arrival is what a receiving worker asks for.
type Arrival interface {
	// Launched returns when what Complete has begun is over. The source may pause its VM then.
	Launched(ctx context.Context) error
	// Complete is called when all read-only disks are there, Load when everything is:
	// what it answers decides whether the source hears READY. Written is nil where nothing is known of it.
	Complete(ctx context.Context) error
	Load(ctx context.Context, digest string, resume json.RawMessage, written *stream.Written) error
}

// arrived is what Load is told.
type arrived struct {
	Digest string          `json:"digest"`
	Resume json.RawMessage `json:"resume,omitempty"`

	Written *stream.Written `json:"written,omitempty"`
}

// Send returns when the destination is READY: the VM stands still, so Send does not wait for the worker to let go
// of its memory. Cancelling ctx, also after that, kills the worker, and with it the connection.
func (c *Client) Send(ctx context.Context, j SendJob, notify func(Progress)) (snapshot.Sent, error) {
	files := fileList{}
	for i := range j.Spaces {
		files.add(j.Spaces[i].File)
		files.add(j.Spaces[i].Notes)
	}
	for i := range j.Disks {
		files.add(j.Disks[i].File)
	}
	files.add(j.State)
	files.add(j.Table)
	j.Tracking.addTo(&files)
	l, err := c.run(ctx, job{Send: &j}, files, notify)
	if err == nil && l.Sent == nil {
		err = errAnswer
	}
	if err != nil {
		return snapshot.Sent{}, err
	}
	return *l.Sent, nil
}

// Receive returns when the source was told READY. ErrStranger: who has connected was not the source, and no file was
// touched. A worker that the stream has taken over may say so too: then it has perhaps given orders before.
func (c *Client) Receive(ctx context.Context, j ReceiveJob, notify func(Progress)) error {
	files := fileList{}
	files.add(j.Conn)
	for i := range j.Spaces {
		files.add(j.Spaces[i].File)
	}
	for i := range j.Disks {
		files.add(j.Disks[i].File)
	}
	files.add(j.State)
	files.add(j.Table)
	l, err := c.run(ctx, job{Receive: &j}, files, notify)
	if err == nil && l.Received == nil {
		err = errAnswer
	}
	return err
}

// arrive does what a receiving worker has asked for. An error goes to the worker, which
// tells the source.
func (t conversation) arrive(ctx context.Context, l line, stdin io.Writer) error {
	if t.arrival == nil {
		return errAnswer
	}
	var err error
	switch {
	case l.Complete:
		err = t.arrival.Complete(ctx)
	case l.Launched:
		err = t.arrival.Launched(ctx)
	default:
		err = t.arrival.Load(ctx, l.Arrived.Digest, l.Arrived.Resume, l.Arrived.Written)
	}
	return respond(stdin, reply{}, err)
}

// Complete implements Arrival for the one at the other end.
func (r *remote) Complete(ctx context.Context) error {
	r.out.write(line{Complete: true})
	return r.done(ctx)
}

// Launched implements Arrival for the one at the other end.
func (r *remote) Launched(ctx context.Context) error {
	r.out.write(line{Launched: true})
	return r.done(ctx)
}

// Load implements Arrival for the one at the other end.
func (r *remote) Load(ctx context.Context, digest string, resume json.RawMessage, written *stream.Written) error {
	r.out.write(line{Arrived: &arrived{Digest: digest, Resume: resume, Written: written}})
	return r.done(ctx)
}

func (r *remote) done(ctx context.Context) error {
	_, err := r.answer(ctx)
	return err
}

// answer awaits what the other end says to a line that has it called.
func (r *remote) answer(ctx context.Context) (reply, error) {
	p, err := r.next(ctx)
	if err == nil && p.Error != nil {
		err = p.Error
	}
	return p, err
}

func (j *SendJob) run(ctx context.Context, answer func(line), notify func(Progress)) (line, error) {
	raw, err := link.Dialer().DialContext(ctx, "tcp", j.Address)
	if err != nil {
		return line{}, fmt.Errorf("reach the destination: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer raw.Close()
	tracker, untracked := j.Tracking.tracker(j.Spaces)
	if err := confine(nil); err != nil {
		return line{}, err
	}
	conn, err := j.Ends.Client(ctx, raw)
	if err != nil {
		return line{}, err
	}
	defer conn.Close()
	answered := func(s snapshot.Sent) line {
		if untracked != "" {
			s.Untracked = untracked
		}
		return line{Sent: &s}
	}
	sent, err := snapshot.Send(ctx, conn, source(j.State, j.Spaces, j.Disks), snapshot.SendOptions{
		Ref: j.Ref, Live: j.Live, Budget: j.Budget, Tracker: tracker, Table: osFile(j.Table), Bandwidth: j.Bandwidth,
		Progress: func(p snapshot.Progress) { notify(Progress{Progress: p}) },
		Ended: func(digest string) {
			debug.SetGCPercent(gcPercent) // the last pass is over
			answer(line{Ended: digest})
		},
		Ready: func(s snapshot.Sent) {
			answer(answered(s))
			linger(ctx)
		},
	})
	return answered(sent), err
}

// lingering is how long a worker that has sent a VM keeps the VM's memory mapped. Unmapping it
// takes a core for tens of milliseconds, in which the VM would stand still: the hand-over and
// the first steps of the guest at its destination want the cores.
const lingering = time.Second

func linger(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lingering):
	}
}

func (j *ReceiveJob) run(ctx context.Context, notify func(Progress)) (line, error) {
	raw, err := net.FileConn(osFile(j.Conn))
	if err = errors.Join(err, j.Conn.Close()); err != nil {
		return line{}, fmt.Errorf("take connection over: %w", err)
	}
	defer raw.Close()
	if err := link.Watch(raw); err != nil {
		return line{}, fmt.Errorf("take connection over: %w", err)
	}
	if err := confine(nil); err != nil {
		return line{}, err
	}
	conn, err := j.Ends.Server(ctx, raw)
	if errdefs.IsUnauthorized(err) {
		err = fmt.Errorf("%w: %w", ErrStranger, err)
	}
	if err != nil {
		return line{}, err
	}
	defer conn.Close()
	t := stream.Target{
		Ref: stream.Ref(j.Ref), State: osFile(j.State), Table: osFile(j.Table), Complete: j.Arrival.Complete,
		Launched: j.Arrival.Launched,
		Base:     j.base,
		Load: func(ctx context.Context, digest string, e stream.End, written *stream.Written) error {
			return j.Arrival.Load(ctx, digest, e.Resume, written)
		},
		Progress: func(moved uint64) { notify(Progress{Progress: snapshot.Progress{Step: "receive", Moved: moved}}) },
	}
	for _, s := range j.Spaces {
		t.Spaces = append(t.Spaces, stream.TargetSpace{Area: stream.Area{Name: s.Name, Size: s.Size}, File: osFile(s.File)})
	}
	for _, d := range j.Disks {
		t.Disks = append(t.Disks, stream.TargetDisk{Blob: d.Blob, File: osFile(d.File)})
	}
	return line{Received: &struct{}{}}, stream.Receive(ctx, conn, t)
}

// base of RAM, the first space. A table that is broken is told where the next snapshot reads it.
func (j *ReceiveJob) base(table *os.File) stream.Base {
	b, err := snapshot.OpenBase(table, j.Spaces[0].Name, j.Spaces[0].Size)
	if err != nil {
		return nil
	}
	return b
}

// addTo adds what there is.
func (t *Tracking) addTo(files *fileList) {
	if t == nil {
		return
	}
	for _, f := range []*File{t.Pagemap, t.Fault, t.Clear, t.Vmstat} {
		files.add(f)
	}
}
