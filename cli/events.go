package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"
)

func newEvents(opts *options) *cobra.Command {
	f := &eventFlags{}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Tell what happens to the VMs of this node",
		Long: "Tell what happens to the VMs of this node as it happens: they start and end, sleep and wake, are\n" +
			"checkpointed, and move from and to it. With --since it begins with what is remembered: the last 4096 events.\n" +
			"While godwitd is started again it waits, and goes on after the last event that it has told.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, show, err := f.read(opts)
			if err != nil {
				return err
			}
			c := opts.client()
			defer c.Close()
			patience := opts.waitForDaemon(cmd, func() {})
			o.Waits = patience.Waits
			o.Gap = func(text string) { opts.note(cmd, text) }
			return c.Events(cmd.Context(), o, func(ev *nodev1.NodeEvent) error { return show(cmd.OutOrStdout(), ev) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "", "begin with what has happened since then: a time, or how long ago, such as 10m")
	flags.StringVar(&f.until, "until", "", "end with what has happened until then")
	flags.StringArrayVarP(&f.filters, "filter", "f", nil,
		"KEY=VALUE: only these; KEY is type, event, phase, vm or node. One key with several values: any of them")
	flags.StringVar(&f.format, "format", "", "Go template for each, with the keys of -o json, such as '{{.event}}'")
	return cmd
}

type eventFlags struct {
	since, until, format string
	filters              []string
}

// read makes of the flags what is asked for, and how an event is shown.
func (f *eventFlags) read(opts *options) (o client.EventOptions, show func(io.Writer, *nodev1.NodeEvent) error,
	err error) {
	now := time.Now()
	if o.Since, err = when("since", f.since, now); err != nil {
		return o, nil, err
	}
	if o.Until, err = when("until", f.until, now); err != nil {
		return o, nil, err
	}
	wanted, err := eventFilter(f.filters, opts.namespace)
	if err != nil {
		return o, nil, err
	}
	write := opts.writeEvent
	if f.format != "" {
		t, err := screen.ParseTemplate(f.format)
		if err == nil { // a key that no event has is said at once
			err = t.Write(io.Discard, screen.Item{Value: &nodev1.NodeEvent{Vm: &nodev1.VM{}}})
		}
		if err != nil {
			return o, nil, err
		}
		write = func(w io.Writer, ev *nodev1.NodeEvent) error { return t.Write(w, screen.Item{Value: ev}) }
	}
	return o, func(w io.Writer, ev *nodev1.NodeEvent) error {
		if !wanted(ev) {
			return nil
		}
		return write(w, ev)
	}, nil
}

// Values of --filter that are known.
var (
	eventTypes = []string{"vm", "operation", "move", "node"}
	eventWords = []string{"create", "start", "exit", "kill", "oom", "pause", "resume", "exec-start", "exec-exit", "rename",
		"delete", "hibernate", "wake", "checkpoint", "move", "lost", "superseded", "recovered", "gap", "daemon-stop"}
)

// eventFilter reads the filters: of one key any value, of several keys all.
func eventFilter(filters []string, namespace string) (func(*nodev1.NodeEvent) bool, error) {
	values := map[string][]string{}
	for _, f := range filters {
		name, value, found := strings.Cut(f, "=")
		if !found || value == "" {
			return nil, fmt.Errorf("--filter %q: write KEY=VALUE: %w", f, errdefs.ErrInvalidArgument)
		}
		var known []string
		switch name {
		case "type":
			known = eventTypes
		case "event":
			known = eventWords
		case "phase", "vm", "node":
		default:
			return nil, fmt.Errorf("--filter %s: there is no such key. The keys are: type, event, phase, vm, node: %w", name,
				errdefs.ErrInvalidArgument)
		}
		if known != nil && !slices.Contains(known, value) {
			return nil, fmt.Errorf("--filter %s: there is no %s %q. There are: %s: %w", f, name, value,
				strings.Join(known, ", "), errdefs.ErrInvalidArgument)
		}
		values[name] = append(values[name], value)
	}
	return func(ev *nodev1.NodeEvent) bool {
		for name, any := range values {
			if !slices.ContainsFunc(any, func(v string) bool { return eventHas(ev, name, v, namespace) }) {
				return false
			}
		}
		return true
	}, nil
}

func eventHas(ev *nodev1.NodeEvent, name, value, namespace string) bool {
	switch name {
	case "type":
		return ev.GetType() == value
	case "event":
		return ev.GetEvent() == value
	case "phase":
		return ev.GetPhase() == value
	case "node":
		return slices.Contains([]string{ev.GetNode(), ev.GetSource(), ev.GetDestination()}, value)
	}
	space, ref, found := strings.Cut(value, "/")
	if !found {
		space, ref = namespace, value
	}
	return ev.GetVm().GetNamespace() == space && (ev.GetName() == ref || strings.HasPrefix(ev.GetVm().GetId(), ref))
}

// eventClock has as many digits for each time, so that the columns stand.
const eventClock = "2006-01-02T15:04:05.000000000Z07:00"

func (o *options) writeEvent(w io.Writer, ev *nodev1.NodeEvent) error {
	vm := ev.GetName()
	if vm == "" {
		vm = ev.GetVm().GetId()
	}
	switch {
	case o.machine():
		return screen.Each(w, o.format(), ev)
	case o.format() == screen.Name:
		return screen.Lines(w, []string{vm})
	case ev.GetVm().GetNamespace() != o.namespace && vm != "":
		vm = ev.GetVm().GetNamespace() + "/" + vm
	}
	text := fmt.Sprintf("%s  %-11s  %-16s  %s", time.Unix(0, ev.GetUnixNano()).UTC().Format(eventClock), ev.GetEvent(),
		screen.Dash(vm), eventDetail(ev, o.format() == screen.Wide))
	return tell(w, "%s\n", strings.TrimSpace(text))
}

// eventDetail is what an event says in addition to its name, such as "done: a -> b" or "code 137".
func eventDetail(ev *nodev1.NodeEvent, wide bool) string {
	text := []string{}
	if ev.GetPhase() != "" {
		text = append(text, ev.GetPhase())
	}
	if ev.GetProcess() != "" {
		text = append(text, ev.GetProcess())
	}
	if ev.ExitCode != nil {
		text = append(text, fmt.Sprintf("code %d", ev.GetExitCode()))
	}
	if from, to := ev.GetSource(), ev.GetDestination(); from != "" && to != "" {
		text = append(text, from+" -> "+to)
	} else if to != "" {
		text = append(text, "on "+to)
	}
	if d := ev.GetDigest(); d != "" {
		if !wide {
			d = short(d)
		}
		text = append(text, d)
	}
	if wide && ev.GetOperation() != "" {
		text = append(text, "operation "+ev.GetOperation())
	}
	if ev.GetReason() != "" {
		text = append(text, ev.GetReason())
	}
	return strings.Join(text, ", ")
}
