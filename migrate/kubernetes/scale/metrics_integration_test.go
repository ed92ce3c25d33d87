//go:build integration

package scale

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// ours are the resources that an operator has to do with. A lease is renewed for as long as it leads.
var ours = []string{"virtualmachines", "virtualmachinesets", "vmoperations", "vmsnapshots", "vmsnapshotcontents",
	"vmrecords", "godwitnodes", "pods", "nodes", "configmaps", "events"}

// count is what the API server was asked in a time, by verb and resource. Watches that go on are no requests.
func (f *fleet) count(over time.Duration) map[string]int {
	f.t.Helper()
	before := f.requests()
	time.Sleep(over)
	return less(f.requests(), before)
}

// requests are those since the API server began.
func (f *fleet) requests() map[string]int {
	f.t.Helper()
	client, err := rest.HTTPClientFor(server.REST())
	if err != nil {
		f.t.Fatal(err)
	}
	all := map[string]int{}
	for _, m := range f.metrics(client, server.REST().Host+"/metrics", "apiserver_request_total") {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["verb"] == "WATCH" || !slices.Contains(ours, labels["resource"]) {
			continue
		}
		all[labels["verb"]+" "+labels["resource"]] += int(m.GetCounter().GetValue())
	}
	return all
}

// reconciles are all of the operator, and the bound of the bucket with their 99th percentile, in ms.
func (f *fleet) reconciles() (p99 float64, n uint64) {
	f.t.Helper()
	buckets := map[float64]uint64{}
	for _, m := range f.metrics(http.DefaultClient, "http://"+f.metricsAt+"/metrics",
		"controller_runtime_reconcile_time_seconds") {
		n += m.GetHistogram().GetSampleCount()
		for _, b := range m.GetHistogram().GetBucket() {
			buckets[b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
	p99 = math.Inf(1)
	for bound, count := range buckets {
		if float64(count) >= 0.99*float64(n) {
			p99 = min(p99, bound)
		}
	}
	return 1000 * p99, n
}

func (f *fleet) metrics(client *http.Client, url, name string) []*dto.Metric {
	f.t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		rest, _ := io.ReadAll(resp.Body)
		f.t.Fatalf("metrics of %s: %s, %v: %s", url, resp.Status, err, rest)
	}
	family, there := families[name]
	if !there {
		f.t.Fatalf("metrics of %s: %s is not among them", url, name)
	}
	return family.GetMetric()
}

// operatorRSS is the most that the operator had in memory, in MiB.
func (f *fleet) operatorRSS() float64 {
	f.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.operator.Process.Pid))
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return kib / 1024
		}
	}
	f.t.Fatal("no VmHWM")
	return 0
}
