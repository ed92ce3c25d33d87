package bench

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const tracing = "/sys/kernel/tracing"

func setTracing(name, value string) { _ = os.WriteFile(filepath.Join(tracing, name), []byte(value), 0) }

// traceEvents has the kernel note which thread runs, and which work its own threads do.
// Without tracefs nothing is told.
func traceEvents() {
	if _, err := os.Stat(tracing + "/trace"); err != nil {
		_ = unix.Mount("tracefs", tracing, "tracefs", 0, "")
	}
	setTracing("trace_clock", "mono")
	setTracing("buffer_size_kb", "16384")
	setTracing("events/sched/sched_switch/enable", "1")
	setTracing("events/workqueue/workqueue_execute_start/enable", "1")
	setTracing("events/workqueue/workqueue_execute_end/enable", "1")
	setTracing("trace", "")
	setTracing("tracing_on", "1")
}

func tracedEvents() []byte {
	setTracing("tracing_on", "0")
	text, _ := os.ReadFile(tracing + "/trace")
	return text
}

var (
	switchOf = regexp.MustCompile(`\s([0-9]+\.[0-9]+): sched_switch: .* ==> next_comm=(.*) next_pid=([0-9]+)`)
	workOf   = regexp.MustCompile(
		`-([0-9]+)\s.*\s([0-9]+\.[0-9]+): workqueue_execute_(start|end): .* function(?: |=)(\S+)`)
)

// tellEvents tells which threads ran in each stretch between two moments, and for how long.
func (b *liveBench) tellEvents(events []byte, moments []time.Time) {
	var mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return
	}
	offset := time.Now().Add(-time.Duration(mono.Nano()))
	at := func(text string) time.Time {
		seconds, _ := strconv.ParseFloat(text, 64)
		return offset.Add(time.Duration(seconds * float64(time.Second)))
	}
	ran := make([]map[string]time.Duration, len(moments)-1)
	for i := range ran {
		ran[i] = map[string]time.Duration{}
	}
	spend := func(who string, from, to time.Time) {
		for i := range ran {
			begin, end := moments[i], moments[i+1]
			if from.After(begin) {
				begin = from
			}
			if to.Before(end) {
				end = to
			}
			if end.After(begin) {
				ran[i][who] += end.Sub(begin)
			}
		}
	}
	var who string
	var since time.Time
	began := map[string]time.Time{}
	for line := range strings.Lines(string(events)) {
		if m := switchOf.FindStringSubmatch(line); m != nil {
			now := at(m[1])
			if who != "" {
				spend(who, since, now)
			}
			who, since = m[2]+" "+m[3], now
		} else if m := workOf.FindStringSubmatch(line); m != nil {
			if m[3] == "start" {
				began[m[1]] = at(m[2])
			} else if from, ok := began[m[1]]; ok {
				spend("work "+m[4], from, at(m[2]))
			}
		}
	}
	for i, name := range []string{"before stop", "stop to cont", "cont to the first tick"} {
		type one struct {
			who  string
			took time.Duration
		}
		var all []one
		for who, took := range ran[i] {
			all = append(all, one{who, took})
		}
		slices.SortFunc(all, func(x, y one) int { return cmp.Compare(y.took, x.took) })
		var line []string
		for _, o := range all[:min(len(all), 24)] {
			line = append(line, fmt.Sprintf("%s %.0f", o.who, ms(o.took)))
		}
		b.say("    %s, %.0f ms: %s", name, ms(moments[i+1].Sub(moments[i])), strings.Join(line, ", "))
	}
}
