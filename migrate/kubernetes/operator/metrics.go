package operator

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// scrapeBound is how long a scrape waits for the cache, which is not there yet when a program begins.
const scrapeBound = time.Second

// figures are those of the objects of a cluster, counted in the cache at each scrape. What cannot be read is left out:
// it is not 0.
type figures struct {
	cached client.Reader
	log    *slog.Logger
}

var (
	vmsDesc = prometheus.NewDesc("godwit_virtualmachines", "VirtualMachines, by phase.", []string{"phase"}, nil)
	vmDesc  = prometheus.NewDesc("godwit_virtualmachine_ready",
		"1: the VM is Ready. 0: it should run, and is not. VMs that should not run have no value.",
		[]string{"namespace", "name"}, nil)
	refusedDesc = prometheus.NewDesc("godwit_virtualmachine_refused",
		"1: the VM does not become what its spec says, until a person acts.",
		[]string{"namespace", "name", "reason"}, nil)
	snapshotsDesc = prometheus.NewDesc("godwit_vmsnapshots", "VMSnapshots: Ready, Failed or Pending.",
		[]string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (figures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{vmsDesc, vmDesc, refusedDesc, snapshotsDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (f figures) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeBound)
	defer cancel()
	vms, snapshots := &v1alpha1.VirtualMachineList{}, &v1alpha1.VMSnapshotList{}
	if err := f.cached.List(ctx, vms); err != nil {
		f.log.WarnContext(ctx, "metrics have no VirtualMachines", "error", err)
	} else {
		collectVMs(vms.Items, to)
	}
	if err := f.cached.List(ctx, snapshots); err != nil {
		f.log.WarnContext(ctx, "metrics have no VMSnapshots", "error", err)
		return
	}
	count := map[string]float64{}
	for _, s := range snapshots.Items {
		switch {
		case meta.IsStatusConditionTrue(s.Status.Conditions, decide.CondReady):
			count["Ready"]++
		case meta.IsStatusConditionTrue(s.Status.Conditions, decide.CondFailed):
			count["Failed"]++
		default:
			count["Pending"]++
		}
	}
	tell(snapshotsDesc, count, to)
}

func collectVMs(vms []v1alpha1.VirtualMachine, to chan<- prometheus.Metric) {
	count := map[string]float64{}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i := range vms {
		vm := &vms[i]
		count[string(vm.Status.Phase)]++
		if decide.Mode(vm) == v1alpha1.ModeRunning && vm.DeletionTimestamp == nil {
			ready := 0.0
			if meta.IsStatusConditionTrue(vm.Status.Conditions, decide.CondReady) {
				ready = 1
			}
			gauge(vmDesc, ready, vm.Namespace, vm.Name)
		}
		if p := meta.FindStatusCondition(vm.Status.Conditions, decide.CondProgressing); p != nil && p.Status == "False" {
			gauge(refusedDesc, 1, vm.Namespace, vm.Name, p.Reason)
		}
	}
	tell(vmsDesc, count, to)
}

// tell gives a number for each state.
func tell(d *prometheus.Desc, count map[string]float64, to chan<- prometheus.Metric) {
	for state, n := range count {
		if state == "" {
			state = "Pending" // nothing was written yet
		}
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, state)
	}
}
