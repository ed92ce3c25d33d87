// Package usability tries what a docker user would try, step by step on one node. It compares each screen with
// the one that was reviewed (testdata/*.golden). `make usability` runs it; docs/dev/usability.md explains.
package usability
