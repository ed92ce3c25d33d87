package bench

import "fmt"

// Goals of pods. Those of memory are for a pod of podContainers.
const (
	podReadyGoal    = 1.0 // times ctr run --cni
	podStartGoal    = 0.5 // times the same
	podSecondGoal   = 0.6 // times the first start
	podExecGoal     = 3   // times a line to a shell on a serial port
	podProbeGoal    = 1.3 // times an exec
	podCPUGoal      = 5   // % of a core
	podShimGoal     = shimGoal + 1.5*podContainers
	podConfigMSGoal = 1000
	podWakeMSGoal   = 100
	podGapGoal      = 6 // ms
)

// podContainers are in the pod whose memory and probes are measured.
const podContainers = 3

// podFigures are those of a pod, with a VM of one container and a pod of runc of the same round.
func podFigures() []*Figure {
	all := []*Figure{
		{Name: "pods.ready", Unit: "ms", Source: Tool, What: "crictl runp to its end: the pod is ready, from a template"},
		{Name: "pods.ready_runc", Unit: "ms", Source: Tool, What: "the same with runc"},
		{Name: "pods.ctr_run", Unit: "ms", Source: Guest, What: "ctr run --cni to the first output, from a template"},
		{Name: "pod_ready_ratio", Unit: "x", Source: Ratio, What: "pods.ready / pods.ctr_run", Most: goal(podReadyGoal)},
		{Name: "pods.start", Unit: "ms", Source: Guest, What: "crictl start to the first line of a container's log"},
		{Name: "pods.start_runc", Unit: "ms", Source: Guest, What: "the same with runc"},
		{Name: "start_ratio", Unit: "x", Source: Ratio, What: "pods.start / pods.ctr_run", Most: goal(podStartGoal)},
		{Name: "pods.second_start", Unit: "ms", Source: Guest, What: "the start of a second container of the same image"},
		{Name: "second_start_ratio", Unit: "x", Source: Ratio, What: "pods.second_start / pods.start",
			Most: goal(podSecondGoal)},
		{Name: "pods.exec", Unit: "ms", Source: Guest, What: "ctr task exec to its end, in a VM of one container"},
		{Name: "pods.ctr_only", Unit: "ms", Source: Tool, What: "ctr version: ctr and containerd without a guest"},
		{Name: "pods.exec_bare", Unit: "ms", Source: Guest, What: "bare QEMU: a shell on the serial port runs the same"},
		{Name: "exec_ratio", Unit: "x", Source: Ratio, What: "(pods.exec - pods.ctr_only) / pods.exec_bare",
			Most: goal(podExecGoal)},
		{Name: "pods.exec_api", Unit: "ms", Source: Guest, What: "the same by containerd's API, without ctr"},
		{Name: "exec_api_ratio", Unit: "x", Source: Ratio, What: "pods.exec_api / pods.exec_bare: the floor of exec_ratio"},
		{Name: "pods.probe", Unit: "ms", Source: Tool, What: "crictl exec --sync of a program, as an exec probe does"},
		{Name: "pods.probe_runc", Unit: "ms", Source: Tool, What: "the same with runc"},
		{Name: "pods.crictl_only", Unit: "ms", Source: Tool, What: "crictl version: crictl and containerd without a guest"},
		{Name: "probe_ratio", Unit: "x", Source: Ratio,
			What: "(pods.probe - pods.crictl_only) / (pods.exec - pods.ctr_only)", Most: goal(podProbeGoal)},
		{Name: "probe_cpu", Unit: "%", Source: Kernel, What: "CPU of shim and godwitd for ten probes a second",
			Most: goal(podCPUGoal)},
		{Name: "shim_pss_mib", Unit: "MiB", Source: Kernel, Most: goal(podShimGoal),
			What: fmt.Sprintf("Pss of the shim and its processes, of a pod of %d containers", podContainers)},
		{Name: "configmap_ms", Unit: "ms", Source: Guest, What: "a ConfigMap's change to the line of a container that saw it",
			Most: goal(podConfigMSGoal)},
		{Name: "configmap_wake_ms", Unit: "ms", Source: Guest, Most: goal(podWakeMSGoal),
			What: "how long a pod that wakes goes on with a ConfigMap's old value, by the guest's clock"},
		{Name: "pods.gap", Unit: "ms", Source: Guest,
			What: "live move of a pod of three containers, 2 GiB: its last line on the one node to its first on the other"},
		{Name: "pods.gap_one", Unit: "ms", Source: Guest, What: "the same of a pod of one container"},
		{Name: "live_gap_extra_ms", Unit: "ms", Source: Guest, What: "pods.gap - pods.gap_one", Most: goal(podGapGoal)},
	}
	for _, f := range all {
		f.in = podsGroup
	}
	return all
}

func (b *bench) derivePods() {
	v := b.value
	b.note("pod_ready_ratio", v("pods.ready")/v("pods.ctr_run"))
	b.note("start_ratio", v("pods.start")/v("pods.ctr_run"))
	b.note("second_start_ratio", v("pods.second_start")/v("pods.start"))
	exec := v("pods.exec") - v("pods.ctr_only")
	b.note("exec_ratio", exec/v("pods.exec_bare"))
	b.note("exec_api_ratio", v("pods.exec_api")/v("pods.exec_bare"))
	b.note("live_gap_extra_ms", v("pods.gap")-v("pods.gap_one"))
	b.note("probe_ratio", (v("pods.probe")-v("pods.crictl_only"))/exec)
}
