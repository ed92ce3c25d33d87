//go:build integration

package v1alpha1_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What controller-gen makes of the types now is what is installed: make generate was not forgotten.
func TestSchemasAreGenerated(t *testing.T) {
	program, err := filepath.Abs("../../../../bin/tools/controller-gen")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(program, "crd:maxDescLen=0,generateEmbeddedObjectMeta=true", "paths=./...", "output:crd:dir="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("controller-gen (make generate builds it): %v: %s", err, out)
	}
	files, err := os.ReadDir(schemas)
	if err != nil {
		t.Fatal(err)
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) != len(files) {
		t.Fatalf("%d schemas are made, %d are installed: %v", len(made), len(files), err)
	}
	for _, file := range files {
		installed, err := os.ReadFile(filepath.Join(schemas, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(installed, made) {
			t.Errorf("%s is not what the types say: run make generate", file.Name())
		}
	}
}
