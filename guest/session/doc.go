// Package session carries a reliable, ordered byte stream over a channel that loses
// bytes and is cut anywhere whenever it is opened anew: virtio-serial or vsock of a VM
// that is saved and restored. The host dials and says hello, the guest listens; both
// send again what the other end has not confirmed. docs/dev/protocols/agent.md describes
// the wire.
package session
