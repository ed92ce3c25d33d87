package tasks

import (
	"testing"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/filters"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/spec"
)

// TestToldTopics: containerd is asked for the events of tasks that are told, and for no others.
func TestToldTopics(t *testing.T) {
	asked, err := filters.ParseAll(toldTopics()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []any{
		&eventsapi.TaskCreate{}, &eventsapi.TaskStart{}, &eventsapi.TaskOOM{}, &eventsapi.TaskExit{},
		&eventsapi.TaskDelete{}, &eventsapi.TaskExecAdded{}, &eventsapi.TaskExecStarted{}, &eventsapi.TaskPaused{},
		&eventsapi.TaskResumed{}, &eventsapi.TaskCheckpointed{}, &machinev1.TaskKilled{},
	} {
		topic := spec.KilledTopic
		if _, ours := event.(*machinev1.TaskKilled); !ours {
			topic = runtime.GetTopic(event)
		}
		told := ofTask(event, &nodev1.NodeEvent{Vm: &nodev1.VM{}})
		if is := asked.Match(&events.Envelope{Topic: topic}); is != told {
			t.Errorf("%s: asked for: %t, told: %t", topic, is, told)
		}
	}
	for _, topic := range []string{"/containers/create", "/containers/update", "/containers/delete"} {
		if !asked.Match(&events.Envelope{Topic: topic}) {
			t.Errorf("%s is not asked for", topic)
		}
	}
}
