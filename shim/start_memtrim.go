package shim

// trimMemory gives back what getting the VM this far has needed. From here on the shim waits,
// for as long as the VM lives.
func (vm *VM) trimMemory() {
	if vm.host.TrimMemory == nil {
		return
	}
	if err := vm.host.TrimMemory(); err != nil {
		vm.log.Warn("give memory back", "error", err)
	}
}
