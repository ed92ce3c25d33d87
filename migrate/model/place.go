package model

// A move that is placed later, as a search of its own. The controller makes a pod for each attempt, a scheduler binds
// it, and the records take its node and uid. Requests to place come late, twice, or for an attempt that is over. A pod
// is deleted by hand, and made again under its name: it is another one, and the node may start both. The node is told
// of the attempt, and not of the pod. So nothing but the record says which of its pods may have the VM.

// Mutations of a placed move.
const (
	PlaceTwice      Mutation = "place-twice"       // a second place of an attempt takes the place of the first
	PlaceOldAttempt Mutation = "place-old-attempt" // the attempt of a request to place is not looked at
	StartAnywhere   Mutation = "start-anywhere"    // a Create on the right node needs not be in the right pod
	LeavePods       Mutation = "leave-pods"        // an attempt that is over leaves its pod
)

// Violations of a placed move, in addition to those of the hand-over.
const (
	RunsElsewhere = "runs in a pod that the record does not name"
	OldPod        = "goes to the pod of an attempt that is over"
	PodLeft       = "the pod of an attempt that is over is left"
)

const (
	placeAttempts = 2
	placeUIDs     = 2 // of the pods that have an attempt's name, one after the other
	placePods     = placeAttempts * placeUIDs
	placeNodes    = 2
)

// placedPod is a pod. Its attempt and its number there follow from its index.
type placedPod struct {
	made, gone, started, runs bool
	node                      uint8 // 0: not bound
}

// placedPhase of the operation.
type placedPhase uint8

const (
	waits placedPhase = iota // also while the attempt is under way
	callsOff
	given // committed
	done
	aborted
)

// placedState is everything. dest and place are pods, from 1: that of the attempt, and that of the record.
type placedState struct {
	phase       placedPhase
	attempt     uint8
	dest, place uint8
	pods        [placePods]placedPod
	asked       uint8 // a bit for each pod: a request to place it is on its way, and stays
	sourceRuns  bool
	turned      bool // the next attempt is ordered
}

func attemptOf(pod int) uint8 { return uint8(pod/placeUIDs) + 1 }

func (s placedState) with(i int, p placedPod) placedState {
	s.pods[i] = p
	return s
}

func (s placedState) broken() (names []string) {
	running := 0
	if s.sourceRuns {
		running++
	}
	for i, p := range s.pods {
		if !p.runs {
			continue
		}
		running++
		if int(s.place) != i+1 {
			names = append(names, RunsElsewhere)
		}
	}
	if running > 1 {
		names = append(names, TwoRunners)
	}
	if s.place != 0 && attemptOf(int(s.place)-1) != s.attempt {
		names = append(names, OldPod)
	}
	for i, p := range s.pods {
		if over := attemptOf(i) < s.attempt || s.phase == aborted; over && p.made && !p.gone {
			names = append(names, PodLeft)
		}
	}
	return names
}

func (s placedState) settled() bool {
	return s.phase == aborted && s.sourceRuns || s.phase == done && s.place != 0 && s.pods[s.place-1].runs
}

// ExplorePlaces searches all states of a placed move.
func ExplorePlaces(m Mutation) Result {
	return search(placedState{attempt: 1, sourceRuns: true},
		func(s placedState, to func(string, placedState)) { placedSteps(s, m, to) }, placedState.broken, placedState.settled)
}

func placedSteps(s placedState, m Mutation, to func(string, placedState)) {
	for i := range s.pods {
		onePod(s, m, i, to)
	}
	after := s
	switch s.phase {
	case waits:
		after.phase = callsOff
		to("U.abort", after)
		after.turned = s.attempt < placeAttempts
		to("U.turn", after)
		// the node of the attempt says that it has the VM, whichever of its pods that is
		if at := s.ready(); s.dest != 0 && at >= 0 {
			after = s
			after.phase, after.place, after.sourceRuns = given, s.dest, false
			to("C.commit", after)
		}
	case callsOff:
		if m != LeavePods {
			for i := range after.pods {
				after.pods[i].gone = after.pods[i].gone || attemptOf(i) == s.attempt && after.pods[i].made
			}
		}
		for i := range after.pods {
			after.pods[i].started = after.pods[i].started && attemptOf(i) != s.attempt // the node discards it
		}
		if after.phase = aborted; s.turned {
			after.phase, after.turned, after.dest, after.attempt = waits, false, 0, s.attempt+1
		}
		to("C.over", after)
	case given:
		if at := s.ready(); at >= 0 {
			after.pods[at].runs, after.phase = true, done
			to("D.run", after)
		}
	}
}

// ready is the pod that the node of the attempt has the VM in; below 0: none.
func (s placedState) ready() int {
	for i, p := range s.pods {
		if p.started && attemptOf(i) == attemptOf(int(s.dest)-1) && p.node == s.pods[s.dest-1].node {
			return i
		}
	}
	return -1
}

// onePod is what becomes of a pod.
func onePod(s placedState, m Mutation, i int, to func(string, placedState)) {
	p, now := s.pods[i], s.phase == waits && attemptOf(i) == s.attempt
	first := i%placeUIDs == 0 || s.pods[i-1].gone
	if now && s.dest == 0 && !p.made && first {
		p.made = true
		to("C.makePod", s.with(i, p))
		return
	}
	lives := p.made && !p.gone
	if lives && p.node == 0 {
		for node := uint8(1); node <= placeNodes; node++ {
			p.node = node
			to("K.bind", s.with(i, p))
		}
		p.node = 0
	}
	if lives && s.phase == waits { // by hand, and by force: its node knows nothing of it
		p.gone = true
		to("U.deletePod", s.with(i, p))
		p.gone = false
	}
	if lives && now && p.node != 0 {
		after := s
		after.asked |= 1 << i
		to("C.place", after)
	}
	place(s, m, i, to)
	start(s, m, i, to)
}

// place is a request to place a pod that comes to the records.
func place(s placedState, m Mutation, i int, to func(string, placedState)) {
	asked, free := s.asked&(1<<i) != 0, s.dest == 0 || m == PlaceTwice
	if asked && free && s.phase == waits && (attemptOf(i) == s.attempt || m == PlaceOldAttempt) {
		after := s
		after.dest = uint8(i) + 1
		to("R.place", after)
	}
}

// start is a Create in a pod, which asks the record.
func start(s placedState, m Mutation, i int, to func(string, placedState)) {
	p := s.pods[i]
	if s.phase != waits || s.dest == 0 || p.node == 0 || p.started || s.ready() >= 0 {
		return
	}
	if int(s.dest) == i+1 || m == StartAnywhere && p.node == s.pods[s.dest-1].node && attemptOf(i) == s.attempt {
		p.started = true
		to("D.start", s.with(i, p))
	}
}
