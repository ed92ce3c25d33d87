package harness

// Handlers are the runtime handlers of containerd's CRI plugin, for Options.Containerd: runc, whose path is the one
// argument, and godwit as its packages set it up.
const Handlers = `[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '%s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.godwit]
  runtime_type = 'io.containerd.godwit.v1'
  pod_annotations = ['godwit.dev/*']
  container_annotations = ['godwit.dev/*']
  privileged_without_host_devices = true
`
