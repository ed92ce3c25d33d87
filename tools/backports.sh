# To be sourced: packages of Debian's backports, unpacked beside the system's own, which
# have the same names. The mirror is that of the machine's own sources.

# backports_get DIR NAME.. downloads packages and unpacks them into DIR.
backports_get() {
	local to=$1 apt sources codename try name
	shift
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	sources=$(grep -l 'Components:.*main' /etc/apt/sources.list.d/debian.sources 2>/dev/null) ||
		{ echo "backports: no /etc/apt/sources.list.d/debian.sources to take the mirror from" >&2; return 1; }
	apt=$(mktemp -d)
	mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/debs"
	# The first stanza is the archive's; the security one has no backports.
	awk 'NF == 0 && seen { exit } NF { seen = 1; print }' "$sources" |
		sed "s/^Suites:.*/Suites: $codename $codename-backports/" >"$apt/parts/backports.sources"
	local options=(-q -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$apt/parts" -o "Dir::State::Lists=$apt/lists" -o APT::Sandbox::User=root)
	for try in 1 2 3; do # a mirror in the middle of an update refuses what its old index named
		apt-get "${options[@]}" update && backports_download "$@" && break
		[ "$try" -lt 3 ] || { echo "backports: cannot download $* from $codename-backports" >&2; rm -rf "$apt"; return 1; }
		sleep $((try * 5))
	done
	rm -rf "$to"
	mkdir -p "$to"
	for name in "$apt"/debs/*.deb; do dpkg -x "$name" "$to"; done
	rm -rf "$apt"
}

# backports_download uses the caller's variables. The name of the newest kernel is a
# package with nothing in it: what it depends on is downloaded.
backports_download() {
	local name real names=()
	for name in "$@"; do
		real=$name
		case $name in linux-image-cloud-*)
			real=$(apt-cache "${options[@]}" show -a "$name" | awk '
				/^Depends:/ && match($0, /linux-image-[^ ,]*/) { print substr($0, RSTART, RLENGTH); exit }') ;;
		esac
		[ -n "$real" ] || return 1
		names+=("$real")
	done
	(cd "$apt/debs" && apt-get "${options[@]}" -t "$codename-backports" download "${names[@]}")
}
