package bundle

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/api/spec"
)

// copied is what a volume becomes that the container gets as a copy of its own.
const copied = "copied"

// withCSI is what docs/reference/pods.md says of types that are refused where their driver has mounted them.
const withCSI = "with CSI"

// kind is a type of volumes.
type kind struct {
	plugin string // of a kubelet that has it; empty: it has none
	want   string // the kind of the pod's volume, or the text of the refusal
	says   string // what the manual says, separated by commas
}

// kinds has every type of volumes of the core API. Some are in no kubelet any more.
var kinds = map[string]kind{
	"hostPath":              {"", copied, "honoured, refused"},                // read-only, and writable
	"emptyDir":              {emptyDir, spec.VolumeDisk, "honoured, refused"}, // of huge pages
	"secret":                {"secret", spec.VolumeSynced, honoured},
	"configMap":             {"configmap", spec.VolumeSynced, honoured},
	"projected":             {"projected", spec.VolumeSynced, honoured},
	"downwardAPI":           {"downward-api", spec.VolumeSynced, honoured},
	"image":                 {"", copied, honoured},
	"persistentVolumeClaim": {"csi", foreign, withCSI},
	"ephemeral":             {"csi", foreign, withCSI},
	"csi":                   {"csi", foreign, withCSI},
	"awsElasticBlockStore":  {"aws-ebs", foreign, withCSI},
	"azureDisk":             {"azure-disk", foreign, withCSI},
	"cinder":                {"cinder", foreign, withCSI},
	"gcePersistentDisk":     {"gce-pd", foreign, withCSI},
	"portworxVolume":        {"portworx-volume", foreign, withCSI},
	"vsphereVolume":         {"vsphere-volume", foreign, withCSI},
	"azureFile":             {"azure-file", foreign, refusedAs},
	"fc":                    {"fc", foreign, refusedAs},
	"flexVolume":            {"vendor~driver", foreign, refusedAs},
	"gitRepo":               {"git-repo", foreign, refusedAs},
	"iscsi":                 {"iscsi", foreign, refusedAs},
	"nfs":                   {"nfs", foreign, refusedAs},
	"cephfs":                {"cephfs", foreign, refusedAs},
	"flocker":               {"flocker", foreign, refusedAs},
	"glusterfs":             {"glusterfs", foreign, refusedAs},
	"photonPersistentDisk":  {"photon-pd", foreign, refusedAs},
	"quobyte":               {"quobyte", foreign, refusedAs},
	"rbd":                   {"rbd", foreign, refusedAs},
	"scaleIO":               {"scaleio", foreign, refusedAs},
	"storageos":             {"storageos", foreign, refusedAs},
}

// foreign is a volume that is refused by the name of its plugin, with a remedy.
const foreign = "plugin"

// dir is the plugin's directory in a kubelet's.
func (k kind) dir() string {
	if strings.Contains(k.plugin, "~") {
		return k.plugin
	}
	return "kubernetes.io~" + k.plugin
}

// TestVolumeTypesAreAll: the table has each type of the core API, of the release of Kubernetes that tools/k8s pins.
func TestVolumeTypesAreAll(t *testing.T) {
	list, err := os.ReadFile("testdata/volumetypes.txt")
	must(t, err)
	var names []string
	for line := range strings.Lines(string(list)) {
		if !strings.HasPrefix(line, "#") {
			names = append(names, strings.TrimSpace(line))
		}
	}
	slices.Sort(names)
	if d := cmp.Diff(names, slices.Sorted(maps.Keys(kinds))); d != "" {
		t.Errorf("types of volumes (-API +table):\n%s", d)
	}
	module, err := os.ReadFile("../../tools/k8s/go.mod")
	must(t, err)
	pinned := regexp.MustCompile(`k8s\.io/api v0\.0\.0 => k8s\.io/api (v[0-9.]+)`).FindSubmatch(module)
	if pinned == nil || !strings.Contains(string(list), " "+string(pinned[1])+".\n") {
		t.Errorf("testdata/volumetypes.txt is not of k8s.io/api %s: make it again, as it says", pinned)
	}
}

// TestVolumeTypesOfTheManual: the manual says of each type what the table has.
func TestVolumeTypesOfTheManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/pods.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Volumes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	said := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 3 {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllStringSubmatch(cells[0], -1) {
			if _, is := kinds[m[1]]; is && !slices.Contains(said[m[1]], cells[1]) {
				said[m[1]] = append(said[m[1]], cells[1])
			}
		}
	}
	for name, kind := range kinds {
		slices.Sort(said[name])
		if got := strings.Join(said[name], ", "); got != kind.says {
			t.Errorf("docs/reference/pods.md says of %s that it is %q, the table %q", name, got, kind.says)
		}
	}
}

// TestVolumeTypes: each of them is taken as the manual says, or refused by name, with a remedy.
func TestVolumeTypes(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			source, mode := t.TempDir(), "ro"
			if kind.plugin != "" {
				source = newKubelet(t).volume(kind.dir(), "data", kind.want == spec.VolumeSynced, "key")
			}
			if kind.want == spec.VolumeDisk {
				mode = "rw"
			}
			b, err := load(t, member(t, bind(source, "/data/", "rprivate", mode)))
			switch {
			case kind.want == foreign:
				for _, text := range []string{"mount /data", "plugin " + strings.Replace(kind.dir(), "~", "/", 1),
					"use an emptyDir", "volumeMode Block", "godwit.dev/volumes=copy"} {
					if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), text) {
						t.Errorf("Load = %v, want a refusal that says %q", err, text)
					}
				}
			case err != nil:
				t.Fatal(err)
			case kind.want == copied:
				if len(b.Copies) != 1 || len(b.Member.Volumes) != 0 || b.Copies[0].Source != source {
					t.Errorf("copies %+v, volumes %+v", b.Copies, b.Member.Volumes)
				}
			case len(b.Copies) != 0 || len(b.Member.Volumes) != 1 || b.Member.Volumes[0].Kind != kind.want ||
				b.Member.Volumes[0].Source != source || b.Member.Container.Mounts[0].Target != "/data":
				t.Errorf("copies %+v, volumes %+v", b.Copies, b.Member.Volumes)
			}
		})
	}
}

// TestVolumeTypesWithCSI: what Kubernetes gives to a CSI driver is taken as a block device of the node. The file system
// on one is taken if the driver leaves the mount to the VM.
func TestVolumeTypesWithCSI(t *testing.T) {
	path, says := loop(t), direct(t)
	for name, kind := range kinds {
		if kind.says != withCSI {
			continue
		}
		volume := filepath.Join(newKubelet(t).volume("kubernetes.io~csi", name, false), csiMount)
		must(t, os.Mkdir(volume, 0o755))
		says(volume, fmt.Sprintf(`{"volume-type":"block","device":%q,"fstype":"ext4"}`, path))
		b, err := load(t, member(t, bind(volume, "/data", "rprivate", "rw")))
		if err != nil || len(b.Member.Volumes) != 1 || b.Member.Volumes[0].Kind != spec.VolumeMounted {
			t.Errorf("%s, which its driver leaves to the VM: %v", name, err)
		}
		b, err = load(t, member(t, device(t, path, "/dev/xvda", "rwm")))
		if err != nil || len(b.Member.Devices) != 1 {
			t.Errorf("%s as a block device: %v", name, err)
		}
	}
}

// TestHostPathRefused: what is written below a hostPath would stay in the VM.
func TestHostPathRefused(t *testing.T) {
	_, err := load(t, member(t, bind(t.TempDir(), "/data", "rprivate", "rw")))
	if !errdefs.IsNotImplemented(err) && !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "/data") {
		t.Errorf("Load = %v", err)
	}
}
