package soak

// mutations are the faults that a soak can have built back in, by name.
var mutations = map[string][]mutation{}
