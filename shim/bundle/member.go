package bundle

import "godwit.dev/godwit/api/spec"

// Member is a container of a CRI pod, as its bundle has it. The shim gives it its guest id, and gives
// each volume an id that the containers of the pod share.
type Member struct {
	Sandbox string // containerd's id of the pod's sandbox
	// Container has no guest id, no layers, and Mounts without ids of volumes: Volumes has one entry for
	// each of them, in the same order.
	Container spec.Member
	Volumes   []Volume
	// Termination is the file that the container writes its last words to, and whose content goes back
	// into the file of the host that was mounted there; empty Source: none.
	Termination Copy
}

// Volume is one that a container of a pod mounts.
type Volume struct {
	Source string // of the host: containers that name the same source share the volume
	spec.Volume
}
