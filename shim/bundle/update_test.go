package bundle

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/api/spec"
)

// What a VM can have of an Update is answered, the rest is refused by the name of its
// field.
func TestReadUpdate(t *testing.T) {
	now := `{"devices":[{"allow":false}],"memory":{"limit":134217728},"cpu":{"shares":100,"quota":100000,` +
		`"period":50000},"pids":{"limit":10},"unified":{"memory.high":"9"}}`
	vm := &spec.Spec{Memory: 256 << 20, VCPUs: 2, Container: &spec.Container{OCI: &specs.Spec{Linux: &specs.Linux{}}}}
	if err := json.Unmarshal([]byte(now), &vm.Container.OCI.Linux.Resources); err != nil {
		t.Fatal(err)
	}
	b := &Bundle{CPUs: "0-1"}
	for _, c := range []struct {
		name, update, want, err string
		is                      func(error) bool
	}{
		{name: "nothing"},
		{name: "as before", update: now, want: `{"cpu":{"shares":100,"quota":100000,"period":50000}}`},
		{name: "less memory", update: `{"memory":{"limit":67108864}}`, want: `{"memory":{"limit":67108864}}`},
		{name: "no limit", update: `{"memory":{"limit":-1}}`, want: `{"memory":{"limit":-1}}`},
		{name: "swap", update: `{"memory":{"swap":268435456}}`, want: `{"memory":{"limit":134217728,"swap":268435456}}`},
		{name: "quota", update: `{"cpu":{"quota":60000}}`, want: `{"cpu":{"shares":100,"quota":60000,"period":50000}}`},
		{name: "pids", update: `{"pids":{"limit":20},"unified":{"memory.high":"9","cpu.idle":"1"}}`,
			want: `{"pids":{"limit":20},"unified":{"cpu.idle":"1"}}`},
		{name: "cpuset as before", update: `{"cpu":{"cpus":"0-1"}}`,
			want: `{"cpu":{"shares":100,"quota":100000,"period":50000}}`},
		{name: "more memory", update: `{"memory":{"limit":134217729}}`, err: "memory.limit", is: errdefs.IsInvalidArgument},
		{name: "more CPUs", update: `{"cpu":{"quota":150000}}`, err: "cpu.quota", is: errdefs.IsInvalidArgument},
		{name: "cpuset", update: `{"cpu":{"cpus":"3"}}`, err: "cpu.cpus", is: errdefs.IsNotImplemented},
		{name: "swappiness", update: `{"memory":{"swappiness":5}}`, err: "swappiness", is: errdefs.IsNotImplemented},
		{name: "device", update: `{"blockIO":{"throttleReadBpsDevice":[{"major":8,"rate":1}]}}`, err: "blockIO",
			is: errdefs.IsNotImplemented},
		{name: "realtime", update: `{"cpu":{"realtimeRuntime":5}}`, err: "realtime", is: errdefs.IsNotImplemented},
		{name: "text", update: `{`, err: "resources", is: errdefs.IsInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := b.ReadUpdate([]byte(c.update), nil, vm)
			if c.err != "" {
				if err == nil || !c.is(err) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v", err)
				}
				return
			}
			got := ""
			if r != nil {
				data, _ := json.Marshal(r)
				got = string(data)
			}
			if err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
		})
	}
	if _, err := b.ReadUpdate(nil, map[string]string{Prefix + "memory": "1GiB"}, vm); !errdefs.IsNotImplemented(err) {
		t.Errorf("annotation of ours: %v", err)
	}
	if _, err := b.ReadUpdate(nil, map[string]string{"x": "y"}, vm); err != nil {
		t.Errorf("annotation of others: %v", err)
	}
}

// What confines a process of the host is left out of an exec and noted; whether it has a
// terminal is the task's word.
func TestExecProcess(t *testing.T) {
	data, notes, err := ExecProcess(
		[]byte(`{"args":["sh"],"cwd":"/","apparmorProfile":"nerdctl-default",`+
			`"selinuxLabel":"u:r:container_t:s0","user":{"uid":5}}`), true, false)
	if err != nil || len(notes) != 2 {
		t.Fatal(notes, err)
	}
	var p specs.Process
	if err := json.Unmarshal(data, &p); err != nil || p.ApparmorProfile != "" || p.SelinuxLabel != "" || !p.Terminal ||
		p.User.UID != 5 {
		t.Errorf("%s, %v", data, err)
	}
}
