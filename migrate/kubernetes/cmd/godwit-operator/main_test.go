package main

import (
	"testing"
)

// The program's flags are its own: the framework that it uses has some of the same names.
func TestFlags(t *testing.T) {
	var s settings
	if err := s.flags().Parse([]string{"-kubeconfig", "k", "-namespace", "n", "-on-stop", "-health", ":1"}); err != nil {
		t.Fatal(err)
	}
	if s.kubeconfig != "k" || s.Namespace != "n" || !s.OnStop || s.Health != ":1" || s.Metrics != "" {
		t.Errorf("%+v", s)
	}
}
