#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bare_root.sh [--keep] [--cache DIR] [--with PATH]… RELEASE COMMAND: runs a shell command in a bare root of a Debian
# release (bookworm, trixie). The root has apt, ca-certificates, git, make, and a clone of this tree with its
# uncommitted changes. Prints how long the command took, and exits with its status. Needs root. mmdebstrap makes the
# root once, from this machine's mirror, as build/roots/RELEASE.tar.
#   --keep       uses the root of the last call, build/roots/RELEASE, again, and updates the tree in it
#   --cache DIR  mounts DIR as the root's folder of caches, to keep those of ccache and pip; by default they start empty
#   --with PATH  also copies a file or folder of this tree that git ignores
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "bare_root: $*" >&2
  exit 1
}

keep=false cache='' with=()
while (($# > 0)); do
  case $1 in
    --keep) keep=true && shift ;;
    --cache) cache=${2:?bare_root: --cache needs a folder} && shift 2 ;;
    --with) with+=("${2:?bare_root: --with needs a path}") && shift 2 ;;
    *) break ;;
  esac
done
(($# == 2)) || fail "usage: scripts/bare_root.sh [--keep] [--cache DIR] [--with PATH]… RELEASE COMMAND"
release=$1 command=$2
[[ "$release" =~ ^[a-z]+$ ]] || fail "RELEASE must be a code name such as bookworm, got '$release'"
(($(id -u) == 0)) || fail "not root: mmdebstrap and chroot need it"
roots=build/roots root=build/roots/$release tree=/headgate

# Prints the apt sources of Debian on this machine (main, updates, security), changed to the release.
sources() {
  local host
  host=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt-get indextargets --format '$(ORIGIN) deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    sed -nE "s/^Debian (deb .*) $host(|-updates|-security) main\$/\1 $release\2 main/p" | sort -u
}

make_tarball() {
  local lines
  scripts/setup.sh roots
  lines=$(sources)
  [[ -n "$lines" ]] || fail "apt's lists name no mirror of Debian; apt-get update may help"
  echo "== headgate: a bare root of $release in $roots"
  mkdir -p "$roots"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,git,make "$release" "$roots/$release.part.tar" - <<<"$lines" \
    2>"$roots/$release.log" || fail "no root of $release: $(grep -m1 '^E:' "$roots/$release.log" || tail -n 1 "$roots/$release.log")"
  mv "$roots/$release.part.tar" "$roots/$release.tar"
}

unpack() {
  rm -rf "$root"
  mkdir -p "$root"
  tar -xpf "$roots/$release.tar" -C "$root" --numeric-owner
  git clone --quiet . "$root$tree"
}

update_tree() {
  local changed
  git -C "$root$tree" fetch --quiet origin "$(git rev-parse HEAD)"
  git -C "$root$tree" reset --quiet --hard FETCH_HEAD
  mapfile -d '' changed < <(git ls-files -z --deleted)
  ((${#changed[@]} == 0)) || (cd "$root$tree" && rm -f "${changed[@]}")
  git ls-files -z --modified --others --exclude-standard | while IFS= read -rd '' file; do
    [[ ! -e "$file" ]] || cp -p --parents "$file" "$root$tree"
  done
  ((${#with[@]} == 0)) || cp -rp --parents "${with[@]}" "$root$tree"
}

# Prints the settings of this machine's pip and TLS clients as variables, one a line: proxies, indices, certificates.
network() {
  env | grep -iE '^(PIP_[A-Z_]+|[a-z]+_proxy|[A-Z_]*CA_BUNDLE|SSL_CERT_FILE)=' || true
  python3 -m pip config list 2>/dev/null | sed -nE "s/^global\.([a-z-]+)='(.*)'\$/\1 \2/p" | while read -r name value; do
    name=PIP_$(tr 'a-z-' 'A-Z_' <<<"$name")
    [[ -n "${!name:-}" ]] || echo "$name=$value"
  done
}

[[ -f $roots/$release.tar ]] || make_tarball
$keep && [[ -d $root$tree ]] || unpack
update_tree
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
mapfile -t variables < <(network)
# Copies the files that those variables name. Mounts the folders that they name read-only.
mounts=()
while read -r path; do
  path=${path%/simple} # a package index lies beside its files
  if [[ -d "$path" ]]; then
    mounts+=(ro "$path" "$path")
  elif [[ -f "$path" ]]; then
    mkdir -p "$(dirname "$root$path")" && cp -L "$path" "$root$path"
  fi
done < <(printf '%s\n' "${variables[@]}" | grep -oE '(=| |://)/[^ ]+' | sed -E 's,^[^/]*(//)?/,/,' | sort -u)
if [[ -n "$cache" ]]; then
  mkdir -p "$cache"
  mounts+=(rw "$(realpath "$cache")" /cache)
  variables+=(XDG_CACHE_HOME=/cache)
fi

# Runs in its own namespace, so that mounts and processes end with the command.
in_namespace='
root=$1 tree=$2 command=$3 && shift 3
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
  mkdir -p "$root$3"
  mount --bind -o "$1" "$2" "$root$3"
  shift 3
done
shift
exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  TERM="${TERM:-dumb}" CI="${CI:-}" "$@" bash -c "cd $tree && $command"'
start=$(date +%s)
status=0
unshare --mount --pid --fork --kill-child bash -ec "$in_namespace" bare_root "$PWD/$root" "$tree" "$command" \
  "${mounts[@]}" -- "${variables[@]}" </dev/null &
trap 'kill -KILL $!' INT TERM # unshare ignores other signals
wait $! || status=$?
echo "bare_root: in $release '$command' ended with status $status after $(($(date +%s) - start)) s"
exit "$status"
