// Command sbom lists what the package of godwit is made of, in CycloneDX 1.6 (JSON, ECMA-424): the Go
// modules that are linked into its programs, the Go standard library, and the kernel of the guest.
//
//	sbom -version V -time SECONDS [-guest bin/guest/version] PROGRAM..
//
// The same inputs give the same bytes.
package main

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "of godwit")
	seconds := flag.Int64("time", 0, "since 1970, when the commit was made")
	guest := flag.String("guest", "", "file that says what the guest is made of; empty: there is none")
	flag.Parse()
	if err := write(os.Stdout, *version, time.Unix(*seconds, 0), *guest, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(w io.Writer, version string, at time.Time, guest string, programs []string) error {
	all := map[string]cyclonedx.Component{} // by purl
	for _, path := range programs {
		if err := linked(all, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if guest != "" {
		kernel, err := kernelOf(guest)
		if err != nil {
			return fmt.Errorf("%s: %w", guest, err)
		}
		all[kernel.PackageURL] = kernel
	}
	components := make([]cyclonedx.Component, 0, len(all))
	for _, c := range all {
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: at.UTC().Format(time.RFC3339),
		Component: &cyclonedx.Component{BOMRef: "godwit", Type: cyclonedx.ComponentTypeApplication, Name: "godwit",
			Version:  version,
			Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}},
	}
	bom.Components = &components
	e := cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON)
	return e.SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// linked adds the modules of a program, and the Go that built it.
func linked(all map[string]cyclonedx.Component, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	add := func(path, version, sum string) {
		purl := "pkg:golang/" + path + "@" + version
		c := cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version,
			PackageURL: purl}
		if sum != "" { // of the module's tree, as go.sum has it
			c.Properties = &[]cyclonedx.Property{{Name: "godwit:go.sum", Value: sum}}
		}
		all[purl] = c
	}
	add("std", strings.TrimPrefix(info.GoVersion, "go"), "")
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(m.Path, m.Version, m.Sum)
	}
	return nil
}

// kernelOf reads what tools/guest/build.sh has noted: "package NAME VERSION" of Debian, and the
// sum of the kernel that was taken out of it.
func kernelOf(path string) (cyclonedx.Component, error) {
	var c cyclonedx.Component
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return c, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		switch w := strings.Fields(lines.Text()); {
		case len(w) == 3 && w[0] == "package":
			purl := fmt.Sprintf("pkg:deb/debian/%s@%s", w[1], w[2])
			c.BOMRef, c.Type, c.PackageURL = purl, cyclonedx.ComponentTypeOS, purl
			c.Name, c.Version = w[1], w[2]
			c.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "GPL-2.0-only"}}}
		case len(w) == 2 && w[1] == "vmlinuz":
			if sum, err := hex.DecodeString(w[0]); err != nil || len(sum) != sha256.Size {
				return c, fmt.Errorf("%q is no SHA-256 of vmlinuz", w[0])
			}
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: w[0]}}
		}
	}
	if c.Name == "" || c.Hashes == nil {
		return c, fmt.Errorf("names no kernel package, or not the sum of vmlinuz (rm it, make guest)")
	}
	return c, nil
}
