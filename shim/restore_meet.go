package shim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/shim/starts"
)

// woken is what a restored guest has answered.
type woken struct {
	answer *agentv1.RestoredResponse
	err    error // it answered so, or was not asked
	nics   error // why they are not as they should be: they are set while the VM runs
	links  error // the same, of what they are connected to
}

// meet is the first call to a restored guest. It gives the guest entropy, the time and its addresses. Its volumes are
// on their way at the same time. An error says that the guest does not answer: any other is verifyGuest's.
func (w *woken) meet(ctx context.Context, s *starting, agent agentv1.AgentService) error {
	req, err := restoredRequest(ctx, s)
	if err == nil {
		s.vm.pod.freshenEarly(agent)
		w.answer, err = w.ask(ctx, s, agent, req)
	}
	w.err = err
	if unanswered(ctx, err) {
		return err
	}
	return nil
}

// unanswered tells a guest that is not there, or is too slow, from one that has answered. A deadline is no answer.
func unanswered(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}

// ask tells the guest what it can take of the request. A VM that was committed is not ended because its workload is in
// the way of a file or a NIC: an immutable file, a full disk, a NIC that has the name of another, a file of which the
// workload lets each call hang. Files come last, and alone: a guest of an earlier build answers no Restored any more
// while they hang.
func (w *woken) ask(ctx context.Context, s *starting, agent agentv1.AgentService,
	req *agentv1.RestoredRequest) (*agentv1.RestoredResponse, error) {
	restored := func(nics bool) func(context.Context) (*agentv1.RestoredResponse, error) {
		return func(ctx context.Context) (*agentv1.RestoredResponse, error) {
			part := &agentv1.RestoredRequest{Entropy: req.Entropy, UnixNano: time.Now().UnixNano(), Generation: req.Generation}
			if nics {
				part.Nics, part.SetNics = req.Nics, true
			}
			return agent.Restored(ctx, part)
		}
	}
	questions := []question{{ask: restored(false)},
		{ask: func(ctx context.Context) (*agentv1.RestoredResponse, error) { return whoIs(ctx, agent) }, hung: true}}
	if req.SetNics { // an earlier build ends with their first problem. A call that is repeated changes nothing.
		questions = slices.Insert(questions, 0, question{ask: restored(true)})
	}
	r := firstAnswer(ctx, questions...)
	if r.err != nil {
		return nil, r.err
	}
	s.extend(time.Duration(s.vm.host.Config.Timeouts.Boot)) // the guest is there: what is left has its own time
	if r.which == len(questions)-1 {
		s.vm.log.Warn("a call hangs in the guest: it says who it is, and does not confirm that it knows of its wake")
		req.Files = nil // they would hang, too
	}
	nics := r.answer.GetNicProblem()
	if req.SetNics && r.which > 0 {
		nics = setNICs(ctx, agent, req)
	}
	w.note(s, nics, setFiles(ctx, agent, req)...)
	return r.answer, nil
}

// setNICs tells a guest that was met of the NICs that it could not take at once.
func setNICs(ctx context.Context, agent agentv1.AgentService, req *agentv1.RestoredRequest) string {
	ctx, cancel := context.WithTimeout(ctx, guestBound/2)
	defer cancel()
	if _, err := agent.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: req.Nics}); err != nil {
		return err.Error()
	}
	return ""
}

// setFiles gives a guest that was met the files that say where it is, and answers what is in the way of them.
func setFiles(ctx context.Context, agent agentv1.AgentService, req *agentv1.RestoredRequest) []string {
	if len(req.Files) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, guestBound)
	defer cancel()
	// Without the time: one that is late would set the guest's clock back, which runs by now.
	answer, err := agent.Restored(ctx, &agentv1.RestoredRequest{Entropy: req.Entropy, Files: req.Files})
	if err != nil {
		return []string{err.Error()}
	}
	return answer.GetFileProblems()
}

// refused tells a guest that has answered, or lets one call hang, from one that is not there.
func refused(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !errdefs.IsUnavailable(err)
}

// Bounds of what is logged of a guest's words.
const (
	maxProblem  = 1 << 10
	maxProblems = 16
)

func shown(problem string) string { return visible.Cut(visible.Line(problem), maxProblem) }

// note says what the guest could not take.
func (w *woken) note(s *starting, nics string, files ...string) {
	for _, problem := range files[:min(len(files), maxProblems)] {
		s.vm.log.Warn("say where the guest is", "error", shown(problem))
	}
	if nics == "" {
		return
	}
	w.nics = fmt.Errorf("the guest says: %s", shown(nics))
	s.address.Result = starts.AddressFailed
}

// settle goes on with what could not be done when the guest was met.
func (w *woken) settle(s *starting) {
	if w.answer != nil { // of several questions, the oldest may have been the last to set the clock
		s.vm.clock.noteResumed()
	}
	s.vm.retryWhileRunning("set links up", w.links, s.vm.nic.up)
	s.vm.retryWhileRunning("set NICs of the guest", w.nics, s.vm.nic.configured)
}

func restoredRequest(ctx context.Context, s *starting) (*agentv1.RestoredRequest, error) {
	entropy := make([]byte, 64)
	if _, err := rand.Read(entropy); err != nil {
		return nil, err
	}
	j := s.vm.journal.Load()
	req := &agentv1.RestoredRequest{Entropy: entropy, UnixNano: time.Now().UnixNano(),
		Generation: fmt.Sprint(j.Generation)}
	if !s.readdress {
		return req, nil
	}
	if !s.plugs {
		req.Nics, req.SetNics = agentNICs(j.Spec.NICs), true
	}
	for files, err := range s.hostFiles().Requests(ctx) {
		if err != nil && ctx.Err() == nil { // a file of this host: the VM is as good without it
			s.vm.log.Warn("read what says where the guest is", "error", err)
			break
		}
		if err != nil {
			return nil, err
		}
		req.Files = append(req.Files, files.GetFiles()...)
	}
	return req, nil
}
