// Package tracking finds out in which way the RAM of VMs can be tracked on this kernel: it
// tries each on a process of its own, launched as a VMM is, whose pages it has written.
package tracking

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/snapshot/track"
)

// Auto is the configuration's word for the best way that works.
const Auto = "auto"

// bound of one self-test.
const bound = 10 * time.Second

// Choice is a way that works, and why no better one does.
type Choice struct {
	Way    track.Way
	Reason string // empty: it is the best, or the one that was asked for
}

// Prober tests ways.
type Prober struct {
	// Command starts Child.
	Command []string
	// Remember answers what find once found for the same files; nil: find is called.
	Remember func(kind string, paths []string, find func() (string, error)) (string, error)
}

// Choose answers the way that is wanted, or the best, if its self-test succeeds. Content
// needs none, so that there always is one.
func (p Prober) Choose(ctx context.Context, wanted string) Choice {
	var reasons []string
	for _, way := range track.Ways {
		if wanted != "" && wanted != Auto && wanted != string(way) && way != track.Content {
			continue
		}
		reason := p.reason(ctx, way)
		if reason == "" {
			return Choice{Way: way, Reason: strings.Join(reasons, "; ")}
		}
		reasons = append(reasons, fmt.Sprintf("%s: %s", way, reason))
	}
	return Choice{Way: track.Content, Reason: strings.Join(reasons, "; ")}
}

// reason is why the way does not work.
func (p Prober) reason(ctx context.Context, way track.Way) string {
	if way == track.Content {
		return ""
	}
	return p.cached(ctx, "tracking by "+string(way), func() error { return p.Test(ctx, way) })
}

// cached is why a test fails, for as long as kernel and program are the same.
func (p Prober) cached(ctx context.Context, what string, test func() error) string {
	find := func() (string, error) {
		if err := test(); err != nil {
			return err.Error(), ctx.Err() // what was broken off is not remembered
		}
		return "", nil
	}
	var name unix.Utsname
	self, err := os.Executable()
	if err != nil || p.Remember == nil || unix.Uname(&name) != nil {
		text, _ := find()
		return text
	}
	kind := fmt.Sprintf("%s on %s %s", what, unix.ByteSliceToString(name.Release[:]),
		unix.ByteSliceToString(name.Version[:]))
	text, err := p.Remember(kind, []string{self}, find)
	if err != nil && text == "" {
		text = err.Error()
	}
	return text
}
