package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"godwit.dev/godwit/api/config"
	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/api/spec"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/shim/bundle"
	"godwit.dev/godwit/shim/cgroup"
	"godwit.dev/godwit/shim/journal"
	"godwit.dev/godwit/shim/proc"
	"godwit.dev/godwit/shim/sandboxprocess"
	"godwit.dev/godwit/shim/starts"
	"godwit.dev/godwit/shim/stdio"
	"godwit.dev/godwit/shim/steps"
	"godwit.dev/godwit/snapshot"
)

// creation is what the steps of one Create tell each other.
type creation struct {
	vm       *VM
	task     *Task
	req      *taskapi.CreateTaskRequest
	join     func(*config.Config) (*Host, error)
	intent   record.Intent
	fence    *machinev1.Ref          // of an earlier Create: that attempt never runs here
	resolved *nodev1.ResolveResponse // nil: the controller knows no pods
	record   *nodev1.Record
	decision record.Decision
	snapshot *snapshot.Config // of a restore, or what the source of a move has told
	waits    bool             // its VMM can wait for it
	next     *journal.Journal
	bundle   *bundle.Bundle
	host     *Host
}

// create makes everything that the task needs and lets the guest execute nothing. On an
// error nothing of it is left.
func (vm *VM) create(ctx context.Context, r *taskapi.CreateTaskRequest,
	join func(*config.Config) (*Host, error)) (uint32, error) {
	t := vm.owner
	if err := t.enter(Creating, TaskCreating); err != nil {
		return 0, err
	}
	c := &creation{vm: vm, task: t, req: r, join: join,
		next: &journal.Journal{Resources: journal.Resources{Bundle: r.GetBundle()}}}
	begun := time.Now()
	err := steps.Run(ctx, new(steps.Undo), undoBound, []steps.Step{
		steps.New("read configuration", c.configure),
		steps.New("read bundle", c.load),
		steps.New("clear what a crash left", c.clear),
		steps.New("decide", c.decide),
		steps.New("claim VM", c.claim),
		steps.New("open snapshot", c.open),
		steps.New("describe VM", c.describe),
		steps.New("write journal", c.journal),
		steps.New("serve machine socket", c.serve),
		steps.New("reserve RAM", c.reserve),
		steps.New("make disks", c.disks),
		steps.New("enter cgroup", c.enter),
		steps.New("await source", c.listenForSource),
		// A process starts while another one brings what slept.
		steps.Together(steps.New("fill from snapshot", c.fill), steps.New("start sandbox process", c.hold)),
		steps.New("run hooks", func(ctx context.Context, u *steps.Undo) error { return runCreateHooks(ctx, u, t) }),
	})
	if err != nil {
		if vm.origin.restored {
			vm.observe(time.Since(begun), true, starts.Address{}) // a failed wake, and a failed create
		}
		t.leave(Creating, New, TaskNew)
		return 0, fmt.Errorf("create task %s: %w", t.id, err)
	}
	for _, note := range c.bundle.Notes {
		vm.log.Info("bundle", "note", note)
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	pid := t.pid()
	vm.events.Send(&events.TaskCreate{
		ContainerID: t.id, Bundle: r.GetBundle(), Rootfs: r.GetRootfs(), Checkpoint: r.GetCheckpoint(), Pid: pid,
		IO: &events.TaskIO{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()},
	})
	return pid, errors.Join(vm.setState(Created), t.setState(TaskCreated))
}

func (c *creation) configure(context.Context, *steps.Undo) error {
	cfg, path, intent, err := readOptions(c.req.GetOptions(), c.req.GetBundle())
	if err != nil {
		return err
	}
	host, err := c.join(cfg)
	if err != nil {
		return err
	}
	if err := c.readCheckpoint(&intent); err != nil {
		return err
	}
	c.host, c.intent, c.next.Config = host, intent, path
	c.vm.host, c.vm.dir = host, host.Config.VMDir(c.vm.namespace, c.vm.id)
	// delete is a process of its own, and is not told the options.
	return saveConfigPath(c.req.GetBundle(), path)
}

func (c *creation) load(ctx context.Context, _ *steps.Undo) (err error) {
	c.bundle, err = bundle.Load(c.req.GetBundle(), c.vm.namespace, c.task.id, c.host.Config, func() (bool, error) {
		return c.host.Disks.CarriesDisk(ctx, c.req.GetRootfs())
	})
	if err == nil {
		err = c.bundle.MapLayers(c.req.GetRootfs())
	}
	if err != nil {
		return err
	}
	if c.bundle.HostNetwork && c.host.Config.HostNetwork == "refuse" {
		return fmt.Errorf("linux.namespaces network: the host's was asked for, such as by --net=host, and a VM cannot be "+
			"in it: give it a network namespace, or set host_network = \"loopback\" to run it without a network: %w",
			errdefs.ErrInvalidArgument)
	}
	if c.bundle.Member != nil {
		return fmt.Errorf("container %s belongs to pod %s, whose sandbox has no VM here: %w", c.task.id,
			c.bundle.Member.Sandbox, errdefs.ErrFailedPrecondition)
	}
	var data []byte
	if c.bundle.Spec.Pod != nil {
		c.task.guest = spec.SandboxProcess
	} else if data, err = json.Marshal(c.bundle.Spec.Container.OCI.Process); err != nil {
		return err
	}
	c.task.bundle = c.bundle
	c.vm.mu.Lock()
	defer c.vm.mu.Unlock()
	c.task.init = c.task.newProcess("", stdio.URIs{
		Stdin: c.req.GetStdin(), Stdout: c.req.GetStdout(), Stderr: c.req.GetStderr(), Terminal: c.req.GetTerminal(),
	}, data)
	return nil
}

// decide is the way of every Create to the one decision of package record. Without
// records there is nothing to ask.
func (c *creation) decide(ctx context.Context, _ *steps.Undo) error {
	c.intent.Left = c.bundle.Left
	if pod := c.bundle.Spec.Pod; pod != nil {
		c.intent.Place = pod.UID
	}
	if err := c.resolve(ctx); err != nil {
		return err
	}
	if !c.host.asks() {
		d, err := record.Decide(nil, c.host.Config.Node, c.intent)
		c.decision = d
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.host.Config.Timeouts.Daemon))
	defer cancel()
	rec, err := c.host.Records.Ensure(ctx, &nodev1.EnsureRequest{Vm: c.vm.name()})
	if err != nil {
		return unavailable(fmt.Errorf("ask godwitd who has the VM: %w", err))
	}
	c.record = rec
	if err := c.checkResolved(); err != nil {
		return err
	}
	if err := c.takeOrder(ctx); err != nil {
		return err
	}
	c.decision, err = record.Decide(c.record, c.host.Config.Node, c.intent)
	if err != nil || c.intent.Checkpoint == "" {
		return err
	}
	return c.giveUpOwn(ctx)
}

// claim makes the VM this node's: for a boot in the record, for a restore by an open operation. The shim opens the wake
// itself if no other program has.
func (c *creation) claim(ctx context.Context, u *steps.Undo) error {
	if c.record == nil {
		return nil
	}
	c.next.Generation = c.record.GetGeneration()
	if c.decision.Action != record.Boot {
		return c.wake(ctx, u)
	}
	// Also where this node owns the VM already: the claim of the task before may be given
	// up at any moment.
	rec, err := c.host.Records.Own(ctx, &nodev1.OwnRequest{
		Vm: c.vm.name(), Node: c.host.Config.Node, Generation: c.record.GetGeneration(), Uid: c.record.GetUid(),
	})
	if err != nil {
		return unavailable(err)
	}
	c.record, c.next.Generation = rec, rec.GetGeneration()
	u.Add("end ownership", func(ctx context.Context) error {
		return c.vm.record().endOwnership(ctx, rec.GetGeneration(), rec.GetUid())
	})
	return nil
}

func (c *creation) wake(ctx context.Context, u *steps.Undo) error {
	c.next.Digest, c.next.Repository = c.decision.Digest, c.decision.Repository
	c.next.Operation, c.next.Attempt, c.next.Move = c.intent.Operation, c.intent.Attempt, c.decision.Move
	if c.intent.Operation != "" {
		return nil
	}
	c.next.Operation, c.next.Attempt, c.next.Self = "wake-"+uuid.NewString(), 1, true
	why := "a snapshot owns the VM: restore it instead of a boot"
	if c.intent.Checkpoint != "" {
		why = "restore a checkpoint by order"
	}
	rec, err := c.host.Records.Open(ctx, &nodev1.OpenRequest{Vm: c.vm.name(), ForceDigest: c.intent.Checkpoint,
		Operation: &nodev1.Operation{
			Id: c.next.Operation, Kind: nodev1.Kind_KIND_WAKE, Attempt: 1, Destination: c.host.Config.Node,
			Digest: c.decision.Digest, Generation: c.record.GetGeneration(),
		}})
	if err != nil {
		return unavailable(err)
	}
	c.vm.log.Warn(why, "digest", c.decision.Digest, "operation", c.next.Operation, "note", rec.GetOperation().GetNote())
	j := *c.next
	u.Add("abort wake", func(ctx context.Context) error { return c.vm.record().abortWake(ctx, &j, "create failed") })
	_, err = c.host.Records.Advance(ctx, c.vm.record().advance(c.next, nodev1.Phase_PHASE_TRANSFERRING, ""))
	return unavailable(err)
}

// journal makes the first durable word on the VM; it names everything that the steps
// after it make.
func (c *creation) journal(_ context.Context, u *steps.Undo) (err error) {
	cfg := c.host.Config
	c.next.RAM = cfg.RAMFile(c.vm.namespace, c.vm.id)
	c.next.RunDir = cfg.VMRunDir(c.vm.namespace, c.vm.id)
	c.next.Stdio = c.task.init.stdio
	c.next.Cgroup, err = c.host.Cgroup(c.bundle.CgroupsPath, c.vm.namespace, c.vm.id, c.cpuset())
	if err != nil {
		return err
	}
	c.next.Private = cgroup.Absent(c.next.Cgroup)
	c.next.Created = time.Now().UnixNano()
	c.next.Phase = journal.Own
	if c.decision.Action != record.Boot {
		c.next.Phase = journal.Incoming
	}
	self, err := proc.Find(os.Getpid())
	if err != nil {
		return err
	}
	c.next.Shim = self
	u.Add("reclaim", func(ctx context.Context) error {
		c.vm.journal.Close()
		j := c.vm.journal.Load()
		// Without a fence: nothing of the attempt is left, and it may be made again.
		return errors.Join(c.vm.socket.close(c.vm.life), reclaimUnfenced(ctx, c.host, c.vm.dir, j))
	})
	c.vm.journal.Begin(c.vm.dir, c.next)
	parent := filepath.Dir(c.vm.dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("write journal: %w", durable.DiskError(err))
	}
	unlock, err := lockDir(parent) // a sweep of what an earlier shim left takes no word that is being written
	if err != nil {
		return err
	}
	defer unlock()
	return c.vm.write(func(*journal.Journal) {})
}

func (c *creation) serve(context.Context, *steps.Undo) error {
	return c.vm.serve(func() (*VM, error) { return c.vm, nil })
}

func (c *creation) hold(ctx context.Context, _ *steps.Undo) error {
	ns := sandboxprocess.Namespace{Path: c.bundle.NetNS, New: c.bundle.NetNS == "" && !c.bundle.HostNetwork}
	err := c.host.Hold(ctx, ns, func(id proc.ID) error {
		netns := c.bundle.NetNS
		if ns.New {
			netns = fmt.Sprintf("/proc/%d/ns/net", id.PID)
		}
		return c.vm.write(func(j *journal.Journal) { j.Holder, j.NetNS = id, netns })
	})
	j := c.vm.journal.Load()
	if err != nil || !ns.New || len(j.Spec.NICs) == 0 {
		return err
	}
	// The VM comes, and may still run elsewhere: the kernel of its namespace must not answer for it.
	return c.host.Network.ForGuest(j.NetNS)
}
