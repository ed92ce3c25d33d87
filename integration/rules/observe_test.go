package rules

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	alertRules = "packaging/prometheus/godwit.rules.yml"
	alertTests = "packaging/prometheus/godwit.rules.test.yml"
	dashboard  = "packaging/grafana/godwit.json"
)

// Each metric of the alerts and of the Grafana dashboard is on the page of metrics: a name that nothing exports
// makes an alert that never fires.
func TestMetricsOfAlertsExist(t *testing.T) {
	files := tracked(t)
	known := map[string]bool{}
	metric := regexp.MustCompile(`godwit_[a-z_]+`)
	for _, name := range metric.FindAllString(string(files["docs/reference/metrics.md"]), -1) {
		known[name] = true
	}
	for _, file := range []string{alertRules, alertTests, dashboard} {
		used := map[string]bool{}
		for _, name := range metric.FindAllString(string(files[file]), -1) {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			used[name] = true
		}
		if len(used) < 8 {
			t.Errorf("%s names %d metrics, want at least 8", file, len(used))
		}
		for _, name := range slices.Sorted(maps.Keys(used)) {
			if !known[name] {
				t.Errorf("%s: docs/reference/metrics.md has no %s", file, name)
			}
		}
	}
}

// Each alert says what to do, and has a test in which it fires and one in which it does not.
func TestAlertsAreTested(t *testing.T) {
	files := tracked(t)
	alerts := regexp.MustCompile(`(?m)- alert: (\w+)$`).FindAllSubmatch(files[alertRules], -1)
	if len(alerts) == 0 {
		t.Fatalf("%s has no alert", alertRules)
	}
	if n := strings.Count(string(files[alertRules]), "action: "); n != len(alerts) {
		t.Errorf("%d of %d alerts say what to do", n, len(alerts))
	}
	tests := string(files[alertTests])
	for _, alert := range alerts {
		name := "alertname: " + string(alert[1]) + "\n        exp_alerts:"
		if !strings.Contains(tests, name+"\n") || !strings.Contains(tests, name+" []\n") {
			t.Errorf("%s: %s needs a case in which it fires and one in which it does not", alertTests, alert[1])
		}
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
