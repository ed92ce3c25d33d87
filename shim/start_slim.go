package shim

// slim gives back what getting the VM this far has needed. From here on the shim waits,
// for as long as the VM lives.
func (vm *VM) slim() {
	if vm.host.Slim == nil {
		return
	}
	if err := vm.host.Slim(); err != nil {
		vm.log.Warn("give memory back", "error", err)
	}
}
