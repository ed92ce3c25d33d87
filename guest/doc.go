// Package guest holds only this text. It says which half runs where.
//
//	guest/client   on the host: the shim's client of the agent; below it what the host prepares for the guest
//	guest/session  in both halves: the reliable stream between them
//	guest/initd    in the guest: process 1, which boots it and starts the agent
//	guest/agentd   in the guest: the agent
//	guest/stage    in the guest: the way of a process into its container
//
// The two halves meet in the protocol alone (api/agent).
package guest
