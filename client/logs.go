package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// LogOptions of Logs.
type LogOptions struct {
	Tail   int          // only so many lines of the end; below 0: all
	Follow bool         // go on with what comes, until the VM ends or is another node's
	Note   func(string) // what is to be known of the log, such as what is missing; may be nil

	Timestamps   bool      // each line begins with the time at which its node had it
	Since, Until time.Time // of the lines that are shown; zero: no bound
}

// Logs writes what a VM that runs detached has written, in order: also what it has written on other nodes, before it
// came to this one. What is missing of that is noted. Following goes on over sleeps and wakes on this node.
func (c *Client) Logs(ctx context.Context, vm *nodev1.VM, w io.Writer, o LogOptions) error {
	if err := c.refusePod(ctx, vm, podLogs); err != nil {
		return err
	}
	path, err := c.logPath(ctx, vm)
	if err != nil {
		return err
	}
	if !o.Until.IsZero() && o.Since.After(o.Until) {
		return fmt.Errorf("the log since %s until %s: the end comes before the beginning: %w",
			o.Since.Format(time.RFC3339), o.Until.Format(time.RFC3339), errdefs.ErrInvalidArgument)
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	before := c.past(ctx, vm, o.Note)
	l := &logReader{path: path, out: w, uid: before.uid, times: newTimedLines(vm.GetId(), o)}
	defer l.close()
	if len(before.nodes) > 0 {
		err = c.joined(ctx, vm, l, before.nodes, before.once, o)
	} else if err = l.begin(o.Tail); err == nil && l.only {
		o.Note(fmt.Sprintf("%s has written nothing yet. What an earlier VM of that name wrote is left out: %s", vm.GetId(),
			path))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !o.Follow:
		return c.noLog(ctx, vm, path)
	case errors.Is(err, errNoTimes):
		return noTimes(vm.GetId())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read the log of %s: %w", vm.GetId(), err)
	case !o.Follow:
		return nil
	}
	return c.followLog(ctx, vm, l, o)
}

// logPath finds the file: where the task's output goes now, else where its label or the configuration says.
func (c *Client) logPath(ctx context.Context, vm *nodev1.VM) (string, error) {
	ctr, err := c.Containerd()
	if err != nil {
		return "", err
	}
	ctx = within(ctx, vm)
	stdout, label := "", ""
	state, err := ctr.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: vm.GetId()})
	if err == nil {
		stdout = state.GetProcess().GetStdout()
	}
	container, err := ctr.LoadContainer(ctx, vm.GetId())
	switch {
	case err == nil:
		labels, err := container.Labels(ctx)
		if err != nil {
			return "", fmt.Errorf("read the labels of VM %s: %w", vm.GetId(), unwrapped(err))
		}
		label = labels[LabelLogURI]
	case errdefs.IsNotFound(err):
		if _, owner, _ := c.whereabouts(ctx, vm); owner.GetNode() != "" {
			if here, _ := c.self(); here != "" && here != owner.GetNode() {
				return "", c.absent(ctx, vm, err)
			}
		}
	default:
		return "", fmt.Errorf("ask containerd for VM %s: %w", vm.GetId(), unwrapped(err))
	}
	uri, err := c.outputOf(vm, stdout, label)
	if err != nil {
		return "", err
	}
	return logFile(vm, uri)
}

// outputOf is where the output of a VM goes: to the file that is its stdout, where the label of its container says, to
// another stdout, or where the configuration says. A task that came from elsewhere has a log too: its stdout is a fifo
// that its shim has made for clients.
func (c *Client) outputOf(vm *nodev1.VM, stdout, label string) (string, error) {
	if strings.HasPrefix(stdout, "file://") {
		return stdout, nil
	}
	if label != "" {
		return label, nil
	}
	cfg, err := c.load()
	if err != nil {
		return "", err
	}
	if stdout != "" && !strings.HasPrefix(stdout, cfg.VMRunDir(vm.GetNamespace(), vm.GetId())+"/") {
		return stdout, nil
	}
	return c.logURI(vm.GetNamespace(), vm.GetId())
}

func logFile(vm *nodev1.VM, uri string) (string, error) {
	u, err := url.Parse(uri)
	switch {
	case err == nil && u.Scheme == "file":
		return u.Path, nil
	case err == nil && u.Scheme == "binary":
		return "", fmt.Errorf("a program keeps the log of %s: %s. If nerdctl made the VM: nerdctl logs %s: %w", vm.GetId(),
			u.Path, vm.GetId(), errdefs.ErrFailedPrecondition)
	case err == nil && u.Scheme == "null":
		return "", fmt.Errorf("%s has no log: its output goes nowhere (stdio_uri, --stdio): %w", vm.GetId(),
			errdefs.ErrFailedPrecondition)
	}
	return "", fmt.Errorf("%s has no log: its output goes to a client. To see it: godwit attach %s: %w", vm.GetId(),
		vm.GetId(), errdefs.ErrFailedPrecondition)
}

// noLog says why there is no file.
func (c *Client) noLog(ctx context.Context, vm *nodev1.VM, path string) error {
	status, owner, found := c.whereabouts(ctx, vm)
	here, _ := c.self()
	if found && owner.GetNode() != "" && here != "" && owner.GetNode() != here {
		return c.absent(ctx, vm, fmt.Errorf("it is %s: %w", status, errdefs.ErrNotFound))
	}
	return fmt.Errorf("%s has written nothing on this node: there is no %s: %w", vm.GetId(), path, errdefs.ErrNotFound)
}

// Pauses of a reader that follows a log.
const (
	logPause  = 200 * time.Millisecond // between two looks at the file
	aliveLook = 10                     // looks at the file between two at the VM
)

// followLog copies what comes, until the VM has ended or is another node's. That a VM was removed is an error.
func (c *Client) followLog(ctx context.Context, vm *nodev1.VM, l *logReader, o LogOptions) error {
	tick := time.NewTicker(logPause)
	defer tick.Stop()
	last := goesOn
	for i := 1; ; i++ {
		now := last
		if i%aliveLook == 0 {
			now = c.followed(ctx, vm, o.Note)
		}
		if err := l.more(); err != nil {
			return fmt.Errorf("read the log of %s: %w", vm.GetId(), err)
		}
		switch {
		case now == isRemoved:
			return &Problem{What: c.name(vm) + " was removed meanwhile.", Cause: errdefs.ErrNotFound}
		case now == isElsewhere, !o.Until.IsZero() && time.Now().After(o.Until):
			return nil
		case now == hasEnded && last == hasEnded && i%aliveLook == 0: // who removes a VM ends it first: it is looked at twice
			return nil
		}
		last = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// fate of a VM whose log is followed.
type fate int

const (
	goesOn      fate = iota // or it sleeps, or no answer came
	hasEnded                // nothing more comes until it is started
	isElsewhere             // on another node
	isRemoved
)

// followed says what has become of a VM. An answer that does not come says nothing.
func (c *Client) followed(ctx context.Context, vm *nodev1.VM, note func(string)) fate {
	if c.alive(within(ctx, vm), vm.GetId()) {
		return goesOn
	}
	info, warning, err := c.listed(ctx, vm)
	if err != nil || warning != "" {
		return goesOn
	}
	here, err := c.self()
	if err != nil {
		return goesOn
	}
	owner := info.GetOwner().GetNode()
	switch {
	case info == nil || info.GetStatus() == "removed":
		ctr, err := c.Containerd()
		if err == nil {
			_, err = ctr.LoadContainer(within(ctx, vm), vm.GetId())
		}
		switch {
		case errdefs.IsNotFound(err):
			return isRemoved
		case err != nil:
			return goesOn
		}
		return hasEnded
	case owner != "" && owner != here:
		note(fmt.Sprintf("%s runs on node %s now. Its log goes on there: godwit logs -f %s", vm.GetId(), owner, vm.GetId()))
		return isElsewhere
	case info.GetStatus() == "stopped":
		return hasEnded
	}
	return goesOn
}
