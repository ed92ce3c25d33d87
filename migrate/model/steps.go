package model

// take is called for each state that one step leads to.
type take func(label string, after State)

// steps takes every step that s allows.
func steps(s State, m Mutation, to take) {
	next := func(label string, after State) {
		for _, d := range after.dests {
			after.destRan = after.destRan || d.vmm == run
		}
		to(label, after)
	}
	controller(s, m, next)
	source(s, m, next)
	for i := range s.dests {
		destination(s, m, i, next)
	}
}

// controller decides from its store and the facts it has received.
func controller(s State, m Mutation, next take) {
	a := s.attempt
	switch s.phase {
	case idle:
		if s.owner == 0 && a < maxAttempts && s.source.record == own && s.source.vmm == run {
			s.attempt++
			next("C.start", s.order(preparing, message{kind: prepareDestination, number: a + 1},
				message{kind: send, number: a + 1}))
		}
	case preparing:
		if (s.facts.has(isPrepared, a) || m == CommitUnprepared) && s.facts.has(isReady, a) {
			after := s.owned(uint8(dest(a) + 1))
			next("C.commit", after.order(committed, message{runAt, a, after.gen}))
		}
		next("C.abort", s.order(aborting, message{kind: abortSource, number: a}, message{kind: abortDestination, number: a}))
	case aborting:
		if s.facts.has(sourceAborted, a) && s.facts.has(destinationAborted, a) {
			next("C.idle", s.order(idle))
		}
	case committed:
		afterCommit(s, m, next)
	case cleaning:
		if s.facts.has(isReleased, a) {
			next("C.succeed", s.order(succeeded))
		}
	case reverting:
		if s.facts.has(sourceRunning, s.gen) {
			next("C.reverted", s.order(idle))
		}
		if s.facts.has(sourceLost, s.gen) {
			next("C.lostAfterRevert", s.order(lostAtSrc))
		}
	}
}

func afterCommit(s State, m Mutation, next take) {
	a := s.attempt
	if s.facts.has(running, s.gen) {
		next("C.clean", s.order(cleaning, message{kind: release, number: a}))
	}
	if s.facts.has(cannot, a) {
		after := s.owned(0)
		next("C.revert", after.order(reverting, message{resumeAfterRevert, a, after.gen}))
	}
	if s.facts.has(lost, a) {
		next("C.lost", s.order(lostAtDest))
	}
	if m == DestroySourceBeforeRunning {
		next("C.releaseEarly", s.order(committed, message{kind: release, number: a}))
	}
}

// order stores a phase and sends what belongs to it.
func (s State) order(p phase, requests ...message) State {
	s.phase = p
	for _, r := range requests {
		s.requests = s.requests.with(r)
	}
	return s
}

func (s State) owned(owner uint8) State {
	s.owner, s.gen = owner, s.gen+1
	return s
}

func source(s State, m Mutation, next take) {
	s.requests.each(func(r message) { sourceRequest(s, m, r, next) })
	src := s.source
	if src.vmm == paused { // who held it is gone: a VMM that is not frozen resumes itself
		after := s
		after.source.vmm = run
		if src.record == sending {
			after.source = node{own, s.gen, run}
		}
		next("S.vmmSelfResume", after)
	}
	if s.reboots < maxReboots && src.vmm != dead {
		after := s
		after.source.vmm, after.reboots = dead, s.reboots+1
		next("S.reboot", after)
	}
}

func sourceRequest(s State, m Mutation, r message, next take) {
	a, i, src := r.number, dest(r.number), s.source
	voted := src.record == prepared && src.number == a
	switch {
	case r.kind == send && src.record == own && src.vmm == run && s.dests[i].record == incoming && s.dests[i].number == a:
		after := s
		after.source = node{sending, a, paused}
		if m == NativeResume {
			next("S.transferNative", after.withDest(i, node{own, s.gen + 1, run}))
		}
		after.requests = after.requests.add(vote, a)
		next("S.transfer", after.withDest(i, node{ready, a, paused}).fact(isReady, a))
	case r.kind == vote && src == node{sending, a, paused}:
		after := s
		after.source = node{prepared, a, frozen}
		if m == NoFreeze {
			after.source.vmm = paused
		}
		next("S.vote", after.fact(isPrepared, a))
	case r.kind == abortSource:
		sourceAbort(s, a, next)
	case r.kind == resumeAfterRevert && voted && src.vmm == dead:
		next("S.lost", s.fact(sourceLost, r.renewed))
	case r.kind == resumeAfterRevert && voted:
		after := s
		after.source = node{own, r.renewed, run}
		next("S.resume", after.fact(sourceRunning, r.renewed))
	case r.kind == release && voted:
		after := s
		after.source = node{released, a, dead}
		next("S.release", after.fact(isReleased, a))
	}
}

func sourceAbort(s State, a uint8, next take) {
	after, src := s.fact(sourceAborted, a), s.source
	switch {
	case src.record == prepared && src.number == a:
		after.source = node{own, s.gen, run}
		if src.vmm == dead {
			after.source.vmm = dead
		}
		next("S.abort", after)
	case src.record == sending && src.number == a:
		after.source = node{own, s.gen, src.vmm}
		if src.vmm == paused {
			after.source.vmm = run
		}
		next("S.abort", after)
	case src.record == own || src.number > a:
		next("S.abortStale", after)
	}
}

func destination(s State, m Mutation, i int, next take) {
	s.requests.each(func(r message) {
		if dest(r.number) == i {
			destinationRequest(s, m, i, r, next)
		}
	})
	if d := s.dests[i]; s.reboots < maxReboots && (d.vmm == paused || d.vmm == run) {
		after := s.withDest(i, node{d.record, d.number, dead})
		after.reboots++
		next("D.reboot", after)
	}
}

func destinationRequest(s State, m Mutation, i int, r message, next take) {
	a, d := r.number, s.dests[i]
	switch {
	case r.kind == prepareDestination && (d.record == none || d.record == fenced) && d.number < a:
		next("D.prepare", s.withDest(i, node{incoming, a, off}))
	case r.kind == abortDestination && d.record != own && d.number <= a:
		next("D.abort", s.withDest(i, node{fenced, a, off}).fact(destinationAborted, a))
	case r.kind == runAt:
		destinationRun(s, m, i, r, next)
	}
}

func destinationRun(s State, m Mutation, i int, r message, next take) {
	a, d := r.number, s.dests[i]
	same := d.number == a
	refused := s.fact(cannot, a)
	fence := refused.withDest(i, node{fenced, a, off})
	switch {
	case d.record == ready && d.vmm == paused && (same || m == RunNotFenced):
		next("D.run", s.withDest(i, node{own, r.renewed, run}).fact(running, r.renewed))
		if same && m == CannotWithoutFence {
			next("D.cannotUnfenced", refused)
		} else if same { // the resume may fail; the fence is durable before the answer
			next("D.cannot", fence)
		}
	case d.record == own && d.number == r.renewed && d.vmm == dead:
		next("D.lost", s.fact(lost, a)) // it may have run: never Cannot (R9)
	case (d.record == none || d.record == incoming || d.record == ready) && same && d.vmm != paused:
		next("D.cannot", fence)
	case d.record == fenced && same:
		next("D.cannot", refused)
	}
}
