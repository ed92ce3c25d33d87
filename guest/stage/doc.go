// Package stage is what godwit-init runs between fork and exec of a container's
// process, in a second instance of itself: it enters or makes the namespaces, mounts,
// and takes on the identity of the process. The agent is at the other end of a socket.
package stage
