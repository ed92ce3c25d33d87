package stage

// forkable says that this machine has spawn.
const forkable = true

// spawn makes a child by clone3 and lets it do the calls from first on. It answers the child's pid, or
// the negative of an error. *at is the call that the child came to last.
//
//go:noescape
func spawn(args *cloneArgs, size uintptr, first *call, at **call) (pid uintptr)
