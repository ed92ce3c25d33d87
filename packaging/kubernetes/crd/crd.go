// Package crd has the schemas that an installation on Kubernetes puts down.
package crd

import "embed"

// Bases are the schemas, one file for each kind.
//
//go:embed bases/*.yaml
var Bases embed.FS
