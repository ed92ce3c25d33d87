package config

// templateUser is how far after the first user that of templates comes: no node has so many VMs.
const templateUser = 0xffff

// CheckUser refuses VMMs that would be root. Who starts VMs, or leads those who do, asks it;
// who looks after VMs that run already does not: they go on.
func (v VMM) CheckUser() error {
	if v.FirstUser == 0 && !v.AllowRoot {
		return invalid("vmm.first_user", "0 makes VMMs root: set a user from 1000 on, or permit it by vmm.allow_root = true")
	}
	return nil
}

// TemplateUser is whom the VMMs run as in which templates are made, one at a time.
func (v VMM) TemplateUser() int {
	if v.FirstUser == 0 {
		return 0
	}
	return v.FirstUser + templateUser
}
