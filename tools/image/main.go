// Command image writes an OCI layout with the container image of godwitd for each architecture that is given. The list
// of its parts (CycloneDX) is attached to each as a referrer:
//
//	image -out DIR -version V -commit C -time SECONDS ARCH=TREE,SBOM..
//
// TREE is the root file system of that architecture; its directories and files become root's. The same inputs give the
// same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sbomType is the media type of a list of parts (IANA), and so the type of the artifact that has it.
const sbomType = "application/vnd.cyclonedx+json"

// release is what all images have in common.
type release struct {
	version, commit string
	made            time.Time
}

func main() {
	var r release
	out := flag.String("out", "", "directory of the layout; it must not be there")
	flag.StringVar(&r.version, "version", "", "of godwit")
	flag.StringVar(&r.commit, "commit", "", "of godwit")
	seconds := flag.Int64("time", 0, "since 1970, when the commit was made")
	flag.Parse()
	r.made = time.Unix(*seconds, 0).UTC()
	if err := r.write(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write makes the layout: an index with one image an architecture, and the referrers of these.
func (r release) write(out string, architectures []string) error {
	images, parts := v1.ImageIndex(empty.Index), []v1.Image{}
	for _, a := range architectures {
		arch, from, _ := strings.Cut(a, "=")
		tree, sbom, ok := strings.Cut(from, ",")
		if !ok {
			return fmt.Errorf("%q is no ARCH=TREE,SBOM", a)
		}
		img, err := r.image(arch, tree)
		if err != nil {
			return fmt.Errorf("image of %s: %w", arch, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		images = mutate.AppendManifests(images, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
		list, err := attached(img, sbom)
		if err != nil {
			return fmt.Errorf("list of parts of %s: %w", arch, err)
		}
		parts = append(parts, list)
	}
	if _, err := os.Lstat(out); err == nil {
		return fmt.Errorf("%s is there already", out)
	}
	to, err := layout.Write(out, empty.Index)
	if err != nil {
		return err
	}
	if err := to.AppendIndex(images, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": "godwit.dev/godwitd:" + tag(r.version),
	})); err != nil {
		return err
	}
	for _, list := range parts {
		if err := to.AppendImage(list); err != nil {
			return err
		}
	}
	return nil
}

// tag is a version as the name of an image may have it.
func tag(version string) string {
	return strings.NewReplacer("+", "-", "~", "-").Replace(version)
}

// image has the tree as its one layer, and godwitd as its program.
func (r release) image(arch, tree string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(r.packed(tree), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	labels := map[string]string{
		"org.opencontainers.image.title": "godwitd", "org.opencontainers.image.version": r.version,
		"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only",
		"org.opencontainers.image.url": "https://godwit.dev",
	}
	if arch != "amd64" {
		labels["dev.godwit.untested"] = "compiled for " + arch + ", and never run there"
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"}, Created: v1.Time{Time: r.made},
		Config: v1.Config{
			Entrypoint: []string{"/opt/godwit/usr/local/bin/godwitd"}, Labels: labels,
			Env: []string{"PATH=/opt/godwit/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: r.made}, CreatedBy: "make image"}})
}

// attached is the artifact that refers to an image, with the list of its parts.
func attached(img v1.Image, sbom string) (v1.Image, error) {
	data, err := os.ReadFile(sbom)
	if err != nil {
		return nil, err
	}
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	list := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	list, err = mutate.Append(list, mutate.Addendum{Layer: static.NewLayer(data, sbomType), MediaType: sbomType})
	if err != nil {
		return nil, err
	}
	return mutate.Subject(list, *subject).(v1.Image), nil
}
