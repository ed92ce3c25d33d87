package rules

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboard = "packaging/grafana/godwit.json"

// alertRules are the files of alerts. Each has its tests in a file next to it.
var alertRules = []string{"packaging/prometheus/godwit.rules.yml", "packaging/prometheus/kubernetes.rules.yml"}

func testsOf(rules string) string { return strings.TrimSuffix(rules, ".yml") + ".test.yml" }

// Each metric of the alerts and of the Grafana dashboard is on the page of metrics: a name that nothing exports
// makes an alert that never fires.
func TestMetricsOfAlertsExist(t *testing.T) {
	files := tracked(t)
	known := map[string]bool{}
	metric := regexp.MustCompile(`godwit_[a-z_]+`)
	for _, name := range metric.FindAllString(string(files["docs/reference/metrics.md"]), -1) {
		known[name] = true
	}
	for file, least := range map[string]int{alertRules[0]: 8, testsOf(alertRules[0]): 8, alertRules[1]: 4,
		testsOf(alertRules[1]): 4, dashboard: 8} {
		used := map[string]bool{}
		for _, name := range metric.FindAllString(string(files[file]), -1) {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			used[name] = true
		}
		if len(used) < least {
			t.Errorf("%s names %d metrics, want at least %d", file, len(used), least)
		}
		for _, name := range slices.Sorted(maps.Keys(used)) {
			if !known[name] {
				t.Errorf("%s: docs/reference/metrics.md has no %s", file, name)
			}
		}
	}
}

// Each alert says what to do, has a runbook, and a test in which it fires and one in which it does not.
func TestAlertsAreTested(t *testing.T) {
	files := tracked(t)
	const runbooks = "docs/how-to/alerts.md"
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllSubmatch(files[runbooks], -1) {
		sections[string(m[1])] = true
	}
	for _, file := range alertRules {
		alerts := regexp.MustCompile(`(?m)- alert: (\w+)$`).FindAllSubmatch(files[file], -1)
		if len(alerts) == 0 {
			t.Fatalf("%s has no alert", file)
		}
		if n := strings.Count(string(files[file]), "action: "); n != len(alerts) {
			t.Errorf("%s: %d of %d alerts say what to do", file, n, len(alerts))
		}
		tests := string(files[testsOf(file)])
		for _, alert := range alerts {
			name := "alertname: " + string(alert[1]) + "\n        exp_alerts:"
			if !strings.Contains(tests, name+"\n") || !strings.Contains(tests, name+" []\n") {
				t.Errorf("%s: %s needs a case in which it fires and one in which it does not", testsOf(file), alert[1])
			}
			if !sections[string(alert[1])] {
				t.Errorf("%s has no section ### %s", runbooks, alert[1])
			}
			delete(sections, string(alert[1]))
		}
	}
	for name := range sections {
		t.Errorf("%s: no alert is called %s", runbooks, name)
	}
}

// What the Prometheus Operator loads are the same rules.
func TestPrometheusRuleIsMade(t *testing.T) {
	made, err := exec.Command(filepath.Join(root, "tools", "prometheusrule.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(tracked(t)["packaging/kubernetes/monitoring/rules.yaml"]); got != string(made) {
		t.Error("packaging/kubernetes/monitoring/rules.yaml is not what tools/prometheusrule.sh makes: run make generate")
	}
}

// The Grafana dashboard is JSON whose panels are each told apart, and ask the data source that a person chooses.
func TestGrafanaDashboard(t *testing.T) {
	var board struct {
		UID    string
		Panels []struct {
			ID         int
			Title      string
			Datasource struct{ UID string }
			Targets    []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(tracked(t)[dashboard], &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if p.Title == "" || len(p.Targets) == 0 || ids[p.ID] || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids[p.ID] = true
	}
	if board.UID == "" || len(ids) == 0 {
		t.Error("it has no name, or no panel")
	}
}
