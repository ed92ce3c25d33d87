package model

var recordNames = map[record]string{
	none: "", own: "OWN", sending: "SENDING", prepared: "PREPARED", released: "RELEASED", incoming: "INCOMING",
	ready: "READY", fenced: "FENCED",
}

var phaseNames = map[phase]string{
	idle: "idle", preparing: "preparing", aborting: "aborting", committed: "committed", reverting: "reverting",
	cleaning:  "cleaning",
	succeeded: "succeeded", lostAtDest: "lost_at_dest", lostAtSrc: "lost_at_src",
}

// Changes answers what a search of the protocol has seen: "node RECORD RECORD" and "phase
// phase phase", from one to the other. The engine's simulation is held to it.
func Changes() map[string]bool {
	changes := map[string]bool{}
	start := initial()
	reached := map[State]bool{start: true}
	for queue := []State{start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		steps(s, None, func(_ string, after State) {
			if s.phase != after.phase {
				changes["phase "+phaseNames[s.phase]+" "+phaseNames[after.phase]] = true
			}
			for i, before := range []node{s.source, s.dests[0], s.dests[1]} {
				now := []node{after.source, after.dests[0], after.dests[1]}[i]
				if before.record != now.record {
					changes["node "+recordNames[before.record]+" "+recordNames[now.record]] = true
				}
			}
			if !reached[after] {
				reached[after] = true
				queue = append(queue, after)
			}
		})
	}
	return changes
}
