package shim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/internal/retry"
)

// knowing is a controller that knows pods, and the daemon next to it.
type knowing struct {
	w        *world
	resolved *nodev1.ResolveResponse
	refuses  error

	mu       sync.Mutex
	answers  []any // of Stopping: a response or an error; the last one stays
	orders   []any // of Hibernate: an error, the phase that the operation comes to, or the class with which it fails
	asked    int
	failures []string
	ordered  []*nodev1.HibernateRequest
	logins   []string // repositories that were asked for
	uses     []nodev1.Use
	login    *nodev1.LoginResponse
	noLogin  error
	phase    nodev1.Phase
	class    string // of an operation that has failed
}

func (k *knowing) Resolve(context.Context, *nodev1.ResolveRequest) (*nodev1.ResolveResponse, error) {
	if err := k.w.call("resolve pod"); err != nil {
		return nil, err
	}
	return k.resolved, k.refuses
}

func (k *knowing) Login(_ context.Context, r *nodev1.LoginRequest) (*nodev1.LoginResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.logins, k.uses = append(k.logins, r.GetRepository()), append(k.uses, r.GetUse())
	return k.login, k.noLogin
}

func next(all *[]any) any {
	first := (*all)[0]
	if len(*all) > 1 {
		*all = (*all)[1:]
	}
	return first
}

func (k *knowing) Stopping(_ context.Context, r *nodev1.StoppingRequest) (*nodev1.StoppingResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.GetError() != "" {
		k.failures = append(k.failures, r.GetError())
		return &nodev1.StoppingResponse{}, nil
	}
	k.asked++
	switch a := next(&k.answers).(type) {
	case *nodev1.StoppingResponse:
		return a, nil
	case error:
		return nil, a
	}
	return nil, errFake
}

func (k *knowing) Hibernate(_ context.Context, r *nodev1.HibernateRequest) (*nodev1.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ordered = append(k.ordered, proto.CloneOf(r))
	switch o := next(&k.orders).(type) {
	case nodev1.Phase:
		k.phase = o
		return &nodev1.StatusResponse{}, nil
	case string:
		k.phase, k.class = nodev1.Phase_PHASE_FAILED, o
		return &nodev1.StatusResponse{}, nil
	case error:
		return nil, o
	}
	return nil, errFake
}

func (k *knowing) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &nodev1.StatusResponse{Settled: k.phase != nodev1.Phase_PHASE_TRANSFERRING,
		Operation: &nodev1.Operation{Phase: k.phase, Reason: "the registry is full",
			Class: k.class}}, nil
}

func (k *knowing) seen() (asked int, failures []string, ordered []*nodev1.HibernateRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked, slices.Clone(k.failures), slices.Clone(k.ordered)
}

// quickStops makes the times of a stop short.
func quickStops(t *testing.T) {
	answer, again, pause, settle := stopAnswer, stopRetry, stopPause, stopSettle
	stopAnswer, stopRetry, stopPause = 100*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	stopSettle = 3 * time.Second
	t.Cleanup(func() { stopAnswer, stopRetry, stopPause, stopSettle = answer, again, pause, settle })
}

// TestPodStop: the signals of a stop wait for what becomes of the VM. What says that it ends, and a hibernate that came
// to nothing, let them go on.
func TestPodStop(t *testing.T) {
	quickStops(t)
	hibernate, pass := &nodev1.StoppingResponse{Hibernate: true}, &nodev1.StoppingResponse{Reason: "a liveness probe"}
	stays := &nodev1.StoppingResponse{Stays: true}
	busy, short := &nodev1.StoppingResponse{Wait: true}, &nodev1.StoppingResponse{Hibernate: true, GraceMs: 1000}
	soon := &nodev1.StoppingResponse{Hibernate: true, GraceMs: (stopMargin + 200*time.Millisecond).Milliseconds()}
	away := fmt.Errorf("no operator: %w", errdefs.ErrUnavailable)
	done, failed, passing := nodev1.Phase_PHASE_SUCCEEDED, "failed precondition", "unavailable"
	noLogin, noRight := errdefs.ErrUnauthenticated.Error(), errdefs.ErrPermissionDenied.Error()
	forbidden := fmt.Errorf("not this node: %w", errdefs.ErrPermissionDenied)
	for name, test := range map[string]struct {
		answers, orders []any
		ends            bool          // the signals come to the guest
		ordered         bool          // once at least
		fails           string        // what is told
		operations      int           // that are ordered, where it is not one; -1: any number
		grace           time.Duration // of the pod; 0: ten minutes
	}{
		"it ends":            {answers: []any{pass}, ends: true},
		"no reason is known": {answers: []any{stays}, ends: true},
		"the reason comes after the signal": {answers: []any{stays, stays, hibernate}, orders: []any{done},
			ordered: true},
		"it hibernates":              {answers: []any{hibernate}, orders: []any{done}, ordered: true},
		"nobody answers":             {answers: []any{away}, orders: []any{done}, ordered: true},
		"nobody takes the order yet": {answers: []any{away}, orders: []any{away, away, done}, ordered: true},
		"it is said late that it ends": {answers: append(slices.Repeat([]any{away}, 40), pass), orders: []any{away},
			ends: true, ordered: true},
		"an operation is open": {answers: []any{busy, busy, hibernate}, orders: []any{done}, ordered: true},
		"the hibernate fails": {answers: []any{hibernate}, orders: []any{failed}, ordered: true, ends: true,
			fails: "registry is full"},
		"a hibernate fails, and the next one does not": {answers: []any{hibernate}, orders: []any{passing, passing, done},
			ordered: true, operations: 3},
		"the registry takes the login no more, until it is changed": {answers: []any{hibernate},
			orders: []any{noLogin, noLogin, done}, ordered: true, operations: 3},
		"the registry answers 403, until it is changed": {answers: []any{hibernate},
			orders: []any{noRight, noRight, done}, ordered: true, operations: 3},
		"the order is forbidden: the workload has all of its time": {answers: []any{hibernate}, orders: []any{forbidden},
			ordered: true, ends: true, fails: "not this node"},
		"nobody may ask": {answers: []any{forbidden}, orders: []any{done}, ordered: true},
		"the registry stays so": {answers: []any{soon}, orders: []any{noRight}, ordered: true, ends: true,
			fails: "terminationGracePeriodSeconds", operations: -1},
		"it is refused": {answers: []any{hibernate}, orders: []any{fmt.Errorf("no: %w", errdefs.ErrFailedPrecondition)},
			ordered: true, ends: true, fails: "no"},
		"the time is over": {answers: []any{short}, ends: true, fails: "terminationGracePeriodSeconds"},
		"the same time is told again": {answers: []any{soon}, orders: []any{away}, ordered: true, ends: true,
			fails: "terminationGracePeriodSeconds"},
		"the node shuts down, and the pod has less": {answers: []any{&nodev1.StoppingResponse{Hibernate: true,
			GraceMs: 300000, FromSignal: true}}, orders: []any{away}, grace: stopMargin + 3*time.Second, ends: true,
			ordered: true, fails: "terminationGracePeriodSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.podNotes = map[string]string{"godwit.dev/vm": "web", "godwit.dev/on-stop": "hibernate"}
			grace := cmp.Or(test.grace, 10*time.Minute)
			k := &knowing{w: w, answers: test.answers, orders: test.orders,
				resolved: &nodev1.ResolveResponse{GraceMs: grace.Milliseconds()}}
			w.pods = k
			w.runningPod("web", "log")
			for i, task := range []string{"web", "log", "web"} { // a kubelet that starts again says it again
				if err := w.killTask(task); i < 2 || !errdefs.IsNotFound(err) { // it may have ended by then
					w.must("stop "+task, err)
				}
			}
			got := func() []string { // the one that is said again may come when signals are held no more
				all := w.agent.signals()
				slices.Sort(all)
				return slices.Compact(all)
			}
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
				retry.Sleep(t.Context(), 10*time.Millisecond)
				_, _, ordered := k.seen()
				if test.ends && len(got()) == 2 || !test.ends && len(ordered) == len(test.orders) {
					break
				}
			}
			retry.Sleep(t.Context(), 50*time.Millisecond)
			_, failures, ordered := k.seen()
			if test.ends != (len(got()) == 2) || !test.ends && len(got()) > 0 {
				t.Errorf("the guest got signals %q", got())
			}
			if test.ordered != (len(ordered) > 0) {
				t.Errorf("ordered: %v", ordered)
			}
			operations := map[string]bool{}
			for _, o := range ordered {
				operations[o.GetOperation()] = true
				if !o.GetEndExecs() || o.GetTimeoutMs() <= 0 ||
					o.GetTimeoutMs() > (grace-stopMargin).Milliseconds() || o.GetUid() == "" || o.GetGeneration() == 0 {
					t.Errorf("ordered %v", o)
				}
			}
			if test.ordered && test.operations >= 0 && len(operations) != max(1, test.operations) {
				t.Errorf("operations %v", operations)
			}
			if told := strings.Join(failures, " "); test.fails == "" && told != "" || !strings.Contains(told, test.fails) {
				t.Errorf("told that %q came to nothing", told)
			}
		})
	}
}

// What is told first, however late, is not more than the time from the signal on.
func TestEndOfStop(t *testing.T) {
	begun := time.Now()
	late, pod := begun.Add(12*time.Second), begun.Add(time.Minute)
	for name, test := range map[string]struct {
		ms         int64
		fromSignal bool
		told       bool
		want       time.Time
	}{
		"nothing is told":         {want: pod},
		"deleted with more":       {ms: 100_000, want: late.Add(100*time.Second - stopMargin)},
		"told again":              {ms: 100_000, told: true, want: pod},
		"a shutdown":              {ms: 20_000, fromSignal: true, want: begun.Add(15 * time.Second)},
		"a shutdown that is long": {ms: 100_000, fromSignal: true, want: pod},
	} {
		answer := &nodev1.StoppingResponse{GraceMs: test.ms, FromSignal: test.fromSignal}
		if got, _ := endOf(answer, begun, late, pod, test.told); !got.Equal(test.want) {
			t.Errorf("%s: %v after the signal, want %v", name, got.Sub(begun), test.want.Sub(begun))
		}
	}
}

// A hibernate that came to nothing is of its stop alone: the next one holds its signals again, once the pod of that
// stop would have been killed.
func TestNextPodStop(t *testing.T) {
	quickStops(t)
	w := newWorld(t)
	w.podNotes = map[string]string{"godwit.dev/vm": "web", "godwit.dev/on-stop": "hibernate"}
	k := &knowing{w: w, answers: []any{&nodev1.StoppingResponse{Hibernate: true}}, orders: []any{"failed precondition",
		nodev1.Phase_PHASE_SUCCEEDED}, resolved: &nodev1.ResolveResponse{GraceMs: 600000}}
	w.pods = k
	w.runningPod("web", "log")
	stop := func(task, what string, so func() bool) {
		t.Helper()
		w.must("stop", w.killTask(task))
		for end := time.Now().Add(time.Minute); !so(); retry.Sleep(t.Context(), 10*time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	stop("web", "the signal goes on", func() bool { return len(w.agent.signals()) == 1 })
	vm, err := w.service.current()
	if err != nil {
		t.Fatal(err)
	}
	vm.mu.Lock()
	vm.pod.stop.over = time.Now()
	vm.mu.Unlock()
	stop("log", "the next stop hibernates", func() bool { _, _, ordered := k.seen(); return len(ordered) == 2 })
}

// signals are those that processes of the guest got.
func (a *fakeAgent) signals() (got []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, said := range a.said {
		if strings.HasPrefix(said, "kill ") && strings.HasSuffix(said, " 15") {
			got = append(got, said)
		}
	}
	return got
}
