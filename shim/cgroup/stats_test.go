package cgroup

import (
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
)

// Kernel memory and swap of a container are there for both versions of cgroups, also if they are 0: Kubernetes lists
// them. Version 1 counts swap together with memory.
func TestKernelAndSwap(t *testing.T) {
	f := Figures{RAM: 1 << 30, Guest: &agentv1.StatsResponse{
		MemoryCurrent: 1000, MemoryMaxUsage: 2000, SwapCurrent: 50, SwapLimit: 500,
		MemoryStat: map[string]uint64{"kernel": 300, "kernel_stack": 16, "file_mapped": 70},
	}}
	one, two := f.V1().GetMemory(), f.V2().GetMemory()
	if one.GetKernel() == nil || one.GetKernel().GetUsage() != 300 {
		t.Errorf("kernel memory of version 1: %v", one.GetKernel())
	}
	if one.GetSwap() == nil || one.GetSwap().GetUsage() != 1050 {
		t.Errorf("memory and swap of version 1: %v", one.GetSwap())
	}
	if one.GetTotalMappedFile() != 70 || one.GetMappedFile() != 70 || two.GetFileMapped() != 70 {
		t.Errorf("mapped files: %d %d %d", one.GetMappedFile(), one.GetTotalMappedFile(), two.GetFileMapped())
	}
	if two.GetSwapUsage() != 50 || two.GetSwapLimit() != 500 || two.GetKernelStack() != 16 {
		t.Errorf("version 2: %v", two)
	}
	if one = (Figures{RAM: 1 << 30}).V1().GetMemory(); one.GetKernel() == nil || one.GetSwap() == nil {
		t.Errorf("without figures of the guest: %v", one)
	}
}
