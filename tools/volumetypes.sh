#!/bin/bash
# Writes the types of volumes that the core API of Kubernetes has, by reflection from the release that tools/k8s pins.
set -euo pipefail
cd "$(dirname "$0")/k8s"
list=$(mktemp)
trap 'rm -rf volumetypes "$list"' EXIT
mkdir volumetypes
cat >volumetypes/main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func main() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		fmt.Fprintln(os.Stderr, "volumetypes: the program does not know its modules")
		os.Exit(1)
	}
	for _, m := range info.Deps {
		if m.Path == "k8s.io/api" {
			fmt.Printf("# Fields of VolumeSource of k8s.io/api/core/v1 %s.\n", m.Version)
		}
	}
	fmt.Println("# Made by: tools/volumetypes.sh")
	t := reflect.TypeFor[corev1.VolumeSource]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fmt.Println(name)
	}
}
GO
go run ./volumetypes >"$list"
cat "$list" >../../shim/bundle/testdata/volumetypes.txt
