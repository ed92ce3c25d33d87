package pods

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
)

// LabelTemplate of a pod is the template that its VM has booted from. A pod of a wake or a move has none: its VM goes
// on with what it booted from.
const LabelTemplate = "godwit.dev/template"

// CondRestored of a pod is True once the VM has come into it with its memory.
const CondRestored corev1.PodConditionType = "Restored"

// hashBytes of a hash are kept: a label's value is short.
const hashBytes = 20

// Template tells the template of a VM from another one. A null does not count: releases write it or leave it out.
func Template(vm *v1alpha1.VirtualMachine) (string, error) {
	text, err := json.Marshal(vm.Spec.Template)
	if err != nil {
		return "", fmt.Errorf("encode the template of VM %s: %w", RecordID(vm), err)
	}
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		return "", fmt.Errorf("decode the template of VM %s: %w", RecordID(vm), err)
	}
	if text, err = json.Marshal(dense(all)); err != nil {
		return "", fmt.Errorf("encode the template of VM %s: %w", RecordID(vm), err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:hashBytes]), nil
}

// dense leaves away null. An empty object counts: an emptyDir is one.
func dense(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			if field = dense(field); field == nil {
				delete(v, key)
				continue
			}
			v[key] = field
		}
	case []any:
		for i := range v {
			v[i] = dense(v[i])
		}
	}
	return v
}
