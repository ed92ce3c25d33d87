# To be sourced: the programs that the cases run, built into bin/ring and bin/integration.

cloud_hypervisor() { command -v "${GODWIT_CLOUD_HYPERVISOR:-cloud-hypervisor}"; }

programs() {
	local file package program
	mkdir -p bin/ring bin/integration
	for program in probe treelist standin; do
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "bin/integration/$program" "./integration/cmd/$program"
	done
	rm -rf bin/ring/points
	case " ${planned[*]}" in
	*' notescrash/'*) # there is no Go in the ground
		mkdir -p bin/ring/points
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -tags points -o bin/ring/points/ ./cmd/{containerd-shim-godwit-v1,godwitd,godwit}
		;;
	esac
	"$ring" programs "${planned[@]}" >"$work/programs"
	while read -r file package; do
		case $file in
		vmdisk.test)
			CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -tags kvmhost,integration -o "bin/ring/$file" "$package"
			[ "$where" = host ] || go run ./integration/cmd/disks -out "$work/disks.tar"
			;;
		demo) CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "bin/ring/$file" "$package" ;;
		shimtest.test)
			(cd "$package" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X runtime.godebugDefault=asyncpreemptoff=1' -o ../../bin/ring/testbin ./testbin &&
				CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "../../bin/ring/$file" .)
			;;
		*) CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -tags kvmhost,integration -o "bin/ring/$file" "$package" ;;
		esac
	done <"$work/programs"
}
