package machinev1

// KilledTopic is that of TaskKilled. containerd has no event of signals, and who follows /tasks/ gets none of this type.
const KilledTopic = "/godwit/kill"
