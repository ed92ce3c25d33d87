package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Annotations by which a workload and its VM tell each other of snapshots. They are read from
// Spec.Annotations, so that they hold wherever the VM wakes.
const (
	AnnotationReady        = AnnotationPrefix + "ready"
	AnnotationReadyTimeout = AnnotationPrefix + "ready-timeout"
	AnnotationNotify       = AnnotationPrefix + "notify"
)

// maxCommand is the length of a command in an annotation.
const maxCommand = 4096

// Ready is the command that ends with 0 in the container once a snapshot may be made; nil where
// none was asked for. within is how long that may take; 0: the node's timeouts.ready.
func (s *Spec) Ready() (command []string, within time.Duration) {
	if !s.HasAgent() || s.Annotations[AnnotationReady] == "" {
		return nil, 0
	}
	command, err := ParseCommand(s.Annotations[AnnotationReady])
	if v, ok := s.Annotations[AnnotationReadyTimeout]; ok && err == nil {
		within, _ = ParseReadyTimeout(v)
	}
	return command, within
}

// Notify is the command that is run in the container with what is told of a snapshot, nil where
// none was asked for.
func (s *Spec) Notify() []string {
	if !s.HasAgent() || s.Annotations[AnnotationNotify] == "" {
		return nil
	}
	command, _ := ParseCommand(s.Annotations[AnnotationNotify])
	return command
}

// ParseCommand reads a command and its arguments: words with spaces between them, or a list in
// JSON, for arguments that hold spaces.
func ParseCommand(text string) ([]string, error) {
	words := strings.Fields(text)
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		words = nil
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			return nil, fmt.Errorf("%q is no JSON list of words (%v): %w", text, err, errdefs.ErrInvalidArgument)
		}
	}
	zero := func(word string) bool { return strings.ContainsRune(word, 0) }
	if len(text) > maxCommand || len(words) == 0 || words[0] == "" || slices.ContainsFunc(words, zero) {
		return nil, fmt.Errorf("it is no command of at most %d bytes, such as \"/bin/hook word\" or [\"/bin/sh\", \"-c\", "+
			"\"...\"]: %w", maxCommand, errdefs.ErrInvalidArgument)
	}
	return words, nil
}

// Bounds of the time that the command of AnnotationReady may have.
const (
	minReady = time.Second
	maxReady = 24 * time.Hour
)

// ParseReadyTimeout reads how long the command of AnnotationReady may take to succeed.
func ParseReadyTimeout(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minReady || d > maxReady {
		return 0, fmt.Errorf("%q is not between 1s and 24h: write text such as \"30s\": %w", text, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

// checkSigns refuses what Ready and Notify could not read.
func (s *Spec) checkSigns() error {
	for _, key := range []string{AnnotationReady, AnnotationNotify} {
		if v, ok := s.Annotations[key]; ok {
			if _, err := ParseCommand(v); err != nil {
				return fmt.Errorf("spec: annotations: %s: %w", key, err)
			}
			if !s.HasAgent() {
				return invalid("annotations", "%s in addition to a VM disk", key)
			}
		}
	}
	if v, ok := s.Annotations[AnnotationReadyTimeout]; ok {
		if _, err := ParseReadyTimeout(v); err != nil {
			return fmt.Errorf("spec: annotations: %s: %w", AnnotationReadyTimeout, err)
		}
	}
	return nil
}
