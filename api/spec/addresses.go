package spec

import "maps"

// AnnotationNetwork says what addresses a VM has after a wake or a move. Without it: those of the network there.
const AnnotationNetwork = AnnotationPrefix + "network"

// NetworkKeep lets a VM have the addresses that it had, or stay where it is.
const NetworkKeep = "keep"

// KeepsAddresses reports whether the VM comes to no network that gives it other addresses.
func (s *Spec) KeepsAddresses() bool { return s.Annotations[AnnotationNetwork] == NetworkKeep }

// SetNetwork sets the annotation; an empty value removes it.
func (s *Spec) SetNetwork(value string) { s.annotate(AnnotationNetwork, value) }

// Become has the VM be another one: with its memory, it begins from a snapshot of the one that it was. named is what
// its pod calls it; empty: its pod does not.
func (s *Spec) Become(namespace, id, uid, named string) {
	s.Namespace, s.ID, s.UID = namespace, id, uid
	s.annotate(AnnotationVM, named)
}

func (s *Spec) annotate(annotation, value string) {
	if s.Annotations[annotation] == value {
		return
	}
	all := maps.Clone(s.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	if all[annotation] = value; value == "" {
		delete(all, annotation)
	}
	s.Annotations = all
}
