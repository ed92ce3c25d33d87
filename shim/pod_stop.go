package shim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/internal/retry"
)

// A kubelet stops the containers of a pod by a signal, and kills them when the pod's grace period is over. The VM of a
// pod that hibernates at a stop gets no signal before it is known why the pod is stopped. An end cannot be taken back:
// while it is not known why, the VM hibernates.

// Times of a stop. Variables for the tests.
var (
	stopAnswer = 3 * time.Second // that the controller has to say why
	stopMargin = 5 * time.Second // before the kill, in which the signal does what it does
	stopRetry  = 500 * time.Millisecond
	stopPause  = 5 * time.Second // after an operation that came to nothing
	stopSettle = 3 * time.Second // that a kubelet has to tell the API server why it stops a pod
)

// shortestStop is the least time of an order: 0 there is as long as it takes.
const shortestStop = time.Millisecond

// heldSignal is one for the init of a container.
type heldSignal struct {
	t      *Task
	signal uint32
	all    bool
}

// podStop holds the signals of a stop. The VM's lock guards what follows vm.
type podStop struct {
	vm      *VM
	signals []heldSignal // none: no stop is held
	over    time.Time    // until then no signal is held: a hibernate came to nothing, and the pod is killed by then
}

// holds takes a signal that would end a container, if the VM hibernates when its pod is stopped. A kubelet stops all
// containers at once: the first signal begins it.
func (p *podStop) holds(s heldSignal) bool {
	vm := p.vm
	if s.t.member == nil || s.signal == sigkill || !ends(s.signal) {
		return false
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	j := vm.journal.Load()
	if j == nil || j.StopGrace == 0 || vm.host.Pods == nil || vm.state != Running || s.t.state != TaskRunning ||
		time.Now().Before(p.over) {
		return false
	}
	if len(p.signals) == 0 {
		go p.run(time.Now().Add(time.Duration(j.StopGrace)*time.Millisecond - stopMargin))
	}
	if !slices.Contains(p.signals, s) {
		p.signals = append(p.signals, s)
	}
	return true
}

// run has the VM hibernate, or lets the signals go on. The VM runs until its operation freezes it.
func (p *podStop) run(until time.Time) {
	vm, begun := p.vm, time.Now()
	sp, generation := vm.spec(), vm.journal.Load().Generation
	order := &nodev1.HibernateRequest{Vm: vm.name(), Operation: newStop(), EndExecs: true, Uid: sp.UID,
		Generation: generation}
	vm.log.Info("the pod is stopped: its signals are held", "until", until, "operation", order.GetOperation())
	var before error // why the try before came to nothing
	for told := false; ; {
		answer, err := p.ask("")
		until, told = endOf(answer, begun, time.Now(), until, told)
		if err == nil && answer.GetStays() && time.Since(begun) < stopSettle {
			retry.Sleep(vm.life, stopRetry)
			continue
		}
		if err == nil && !answer.GetWait() && !answer.GetHibernate() {
			vm.log.Info("the pod ends: its signals go on", "reason", answer.GetReason())
			p.letGo(time.Time{})
			return
		}
		vm.log.Info("the pod is stopped", "wait", answer.GetWait(), "reason", answer.GetReason(), "unanswered", err,
			"until", until)
		err = errStopWaits
		if !answer.GetWait() {
			err = p.hibernate(order, until)
		}
		if err == nil || vm.life.Err() != nil || vm.inState(Stopped) {
			return
		}
		if left := time.Until(until); left > 0 && passes(err) {
			pause := stopRetry
			if errors.As(err, new(*failedStop)) { // what has ended cannot be ordered again
				pause, order.Operation = stopPause, newStop()
			}
			vm.log.Warn("hibernate at a stop: it is tried again", "error", err)
			before = err
			retry.Sleep(vm.life, min(left, pause))
			continue
		}
		err = errors.Join(err, before)
		vm.log.Error("hibernate at a stop", "operation", order.GetOperation(), "error", err)
		if _, told := p.ask(err.Error()); told != nil {
			vm.log.Warn("tell that a hibernate came to nothing", "error", told)
		}
		p.letGo(until.Add(2 * stopMargin))
		return
	}
}

// endOf is until when a hibernate may go on. The kill is where it was when this was asked first: what is told later as
// left from now on is not more. What counts from the signal only shortens what the pod has by itself.
func endOf(answer *nodev1.StoppingResponse, begun, now, until time.Time, told bool) (time.Time, bool) {
	grace := time.Duration(answer.GetGraceMs()) * time.Millisecond
	if grace <= 0 {
		return until, told
	}
	if answer.GetFromSignal() {
		now, told = begun, true
	}
	if end := now.Add(grace - stopMargin); !told || end.Before(until) {
		until = end
	}
	return until, true
}

func newStop() string { return "stop-" + uuid.NewString() }

// failedStop is an operation that has ended, and whose VM runs on.
type failedStop struct{ error }

func (e *failedStop) Unwrap() error { return e.error }

var errStopWaits = fmt.Errorf("another operation is open: %w", errdefs.ErrUnavailable)

// passes reports whether what was in the way may be gone in a while. A login that a registry takes no more, or only for
// less, may be changed: the next try asks for it anew. The registry is asked in an operation. An order that is
// forbidden is the controller's to allow, and the workload has its time to end by itself.
func passes(err error) bool {
	var held *record.HeldError
	return errdefs.IsUnavailable(err) || errdefs.IsResourceExhausted(err) || errdefs.IsUnauthorized(err) ||
		errdefs.IsPermissionDenied(err) && errors.As(err, new(*failedStop)) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &held) && held.Record.GetOperation() != nil
}

// ask asks why the pod is stopped, and again while nothing answers and there is time. With failed it tells why the
// hibernate came to nothing.
func (p *podStop) ask(failed string) (answer *nodev1.StoppingResponse, err error) {
	vm := p.vm
	ctx, cancel := context.WithTimeout(vm.life, stopAnswer)
	defer cancel()
	sp := vm.spec()
	for {
		answer, err = vm.host.Pods.Stopping(ctx, &nodev1.StoppingRequest{Pod: podOf(sp.Pod), Vm: vm.name(), Uid: sp.UID,
			Error: failed})
		if err == nil {
			return answer, nil
		}
		if retry.Sleep(ctx, stopRetry); ctx.Err() != nil {
			return nil, err
		}
	}
}

// hibernate orders it, and follows the operation. After until the VM runs on.
func (p *podStop) hibernate(order *nodev1.HibernateRequest, until time.Time) error {
	vm := p.vm
	left := time.Until(until)
	if left < shortestStop {
		return fmt.Errorf("the pod has no time left to hibernate, %s before it is killed: give it a longer "+
			"terminationGracePeriodSeconds, or the node a longer shutdown: %w", stopMargin, errdefs.ErrAborted)
	}
	order.TimeoutMs = left.Milliseconds()
	ctx, cancel := context.WithDeadline(vm.life, until)
	defer cancel()
	if _, err := vm.host.Pods.Hibernate(ctx, order); err != nil {
		return err
	}
	return p.follow(order.GetOperation(), until.Add(stopMargin))
}

// follow waits until an operation is over. One that is not durable in time gives the VM back by itself.
func (p *podStop) follow(id string, until time.Time) error {
	vm := p.vm
	ctx, cancel := context.WithDeadline(vm.life, until)
	defer cancel()
	for {
		status, err := vm.host.Pods.Status(ctx, &nodev1.StatusRequest{Operation: id})
		op := status.GetOperation()
		switch {
		case vm.inState(Stopped), err == nil && op.GetPhase() == nodev1.Phase_PHASE_SUCCEEDED:
			return nil
		case err == nil && status.GetSettled():
			return &failedStop{endedAs(op)}
		}
		if retry.Sleep(ctx, pollOrder); ctx.Err() != nil {
			return fmt.Errorf("operation %s: what came of it is not known: %w", id, errors.Join(ctx.Err(), err))
		}
	}
}

// letGo sends the signals that were held. No later one is held until over.
func (p *podStop) letGo(over time.Time) {
	vm := p.vm
	vm.mu.Lock()
	signals := p.signals
	p.signals, p.over = nil, over
	vm.mu.Unlock()
	for _, s := range signals {
		if err := s.t.kill(vm.life, "", s.signal, s.all); err != nil && !errdefs.IsNotFound(err) {
			vm.log.Warn("signal of a stop", "task", s.t.id, "signal", s.signal, "error", err)
		}
	}
}
