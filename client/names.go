package client

import (
	"sync"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// Names are those by which a user has called VMs. Errors say them instead of ids. Several clients may share them.
type Names struct {
	mu   sync.Mutex
	said map[string]string // by NAMESPACE/ID
}

// learn remembers how a VM was called.
func (n *Names) learn(vm *nodev1.VM, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said == nil {
		n.said = map[string]string{}
	}
	n.said[key(vm)] = name
}

// Of answers how the user has called a VM; else its id, with the namespace if it has another than that.
func (n *Names) Of(vm *nodev1.VM, namespace string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch said, found := n.said[key(vm)]; {
	case found:
		return said
	case vm.GetNamespace() == namespace:
		return vm.GetId()
	}
	return key(vm)
}

// In puts the names into a text that has VMs as NAMESPACE/ID, also where "VM " stands before.
func (n *Names) In(text string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, said := range n.said {
		text = replaced(text, id, said)
	}
	return text
}

// replaced puts new in the place of the word old. A part of a longer word, or of a path, is left as it is.
func replaced(text, old, other string) string {
	done := 0
	for {
		at := indexWord(text[done:], old)
		if at < 0 {
			return text
		}
		at += done
		text = text[:at] + other + text[at+len(old):]
		done = at + len(other)
	}
}

func indexWord(text, word string) int {
	for from := 0; from+len(word) <= len(text); from++ {
		if text[from:from+len(word)] != word || from > 0 && inName(text[from-1]) {
			continue
		}
		rest := text[from+len(word):]
		if len(rest) == 0 || !inName(rest[0]) || rest[0] == '.' && (len(rest) == 1 || !inName(rest[1])) {
			return from
		}
	}
	return -1
}

// inName reports whether a letter can be a part of an id or a path.
func inName(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-' ||
		b == '/'
}

// name is how the user has called a VM.
func (c *Client) name(vm *nodev1.VM) string { return c.names.Of(vm, c.namespace) }
