package spec

import "maps"

// AnnotationNetwork says what addresses a VM has after a wake or a move. Without it: those of the network there.
const AnnotationNetwork = AnnotationPrefix + "network"

// NetworkKeep lets a VM have the addresses that it had, or stay where it is.
const NetworkKeep = "keep"

// KeepsAddresses reports whether the VM comes to no network that gives it other addresses.
func (s *Spec) KeepsAddresses() bool { return s.Annotations[AnnotationNetwork] == NetworkKeep }

// SetNetwork sets the annotation; an empty value removes it.
func (s *Spec) SetNetwork(value string) {
	if s.Annotations[AnnotationNetwork] == value {
		return
	}
	all := maps.Clone(s.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	if all[AnnotationNetwork] = value; value == "" {
		delete(all, AnnotationNetwork)
	}
	s.Annotations = all
}
