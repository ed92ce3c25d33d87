package spec

// KilledTopic is that of the event TaskKilled. containerd has no event of signals, and a client that follows /tasks/
// gets none of this type.
const KilledTopic = "/godwit/kill"
