#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deb.sh [--check | --source FOLDER]: builds the Debian packages of packaging/debian/ for this machine's release in
# build/deb, and checks them with lintian, whose errors count as failures. Build-Depends comes from
# scripts/packages.txt, and the version from version.h and CHANGELOG.md. DEBFULLNAME and DEBEMAIL name the maintainer.
#   --check          then installs and uses the packages in a bare root (tests/package/debian.sh)
#   --source FOLDER  only writes the source of the packages to FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "deb: $*" >&2
  exit 1
}

groups=(build tool deb)
maintainer="${DEBFULLNAME:-The Headgate authors} <${DEBEMAIL:-headgate@example.org}>"
out=build/deb
source=$out/headgate

number() { sed -n "s/^#define HEADGATE_VERSION_$1 //p" include/headgate/version.h; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)
soversion=$(number MAJOR)
((soversion > 0)) || soversion=0.$(number MINOR)

# The version of an unreleased commit has a suffix with ~, which sorts before the released version.
upstream=$version
grep -q "^## \[$version\]" CHANGELOG.md || upstream+="~$(git log -1 --format=%cd.%h --date=format:%Y%m%d)"
revision=1~deb$(. /etc/os-release && echo "$VERSION_ID")

# Omits debhelper, which debhelper-compat implies, and g++, which every build has. Debian's machines need no ccache.
build_depends() { scripts/setup.sh --list "${groups[@]}" | sed -E '/^(g\+\+|ccache|debhelper)$/d;s/.*/ &,/'; }

write_source() {
  local debian=$source/debian name
  mkdir -p "$source"
  git ls-files -z --cached --others --exclude-standard | while IFS= read -rd '' name; do
    [[ ! -e "$name" ]] || cp -p --parents "$name" "$source"
  done
  mv "$source/packaging/debian" "$debian"
  mv "$debian/libheadgate.install" "$debian/libheadgate$soversion.install"
  { while IFS= read -r name; do
    case $name in
      @BUILD_DEPENDS@) build_depends ;;
      *) name=${name//@SOVERSION@/$soversion} && echo "${name//@MAINTAINER@/$maintainer}" ;;
    esac
  done; } <"$debian/control.in" >"$debian/control"
  rm "$debian/control.in"
  cat >"$debian/changelog" <<END
headgate ($upstream-$revision) unstable; urgency=medium

  * Headgate $version. changelog.gz lists what changed.

 -- $maintainer  $(git log -1 --format=%cD)
END
}

# Installs the pinned scikit-build-core and nanobind for the system's Python. Debian has other versions, or none.
python_tools() {
  local wanted
  wanted=$(python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
  [[ "$(cat "$out/python.txt" 2>/dev/null)" != "$wanted" ]] || return 0
  rm -rf "$out/python"
  # shellcheck disable=SC2086 # words
  python3 -m pip install --quiet --disable-pip-version-check --target "$out/python" $wanted >"$out/pip.log" 2>&1 ||
    fail "pip cannot install $wanted: $(grep -m1 '^ERROR' "$out/pip.log")"
  echo "$wanted" >"$out/python.txt"
}

check=false
case "$#${1:-}" in
  0) ;;
  1--check) check=true ;;
  2--source)
    source=$2
    [[ ! -e "$source" ]] || fail "--source writes a new folder; $source is there"
    write_source
    exit
    ;;
  *) fail "usage: scripts/deb.sh [--check | --source FOLDER]" ;;
esac

scripts/setup.sh "${groups[@]}" deb-tools
mkdir -p "$out"
rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
python_tools
rm -rf "$source"
write_source
echo "== headgate: packages of $upstream-$revision in $out"

export PYTHONPATH=$PWD/$out/python DEB_BUILD_OPTIONS="noautodbgsym parallel=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export DEB_CFLAGS_STRIP=-g DEB_CXXFLAGS_STRIP=-g
if launcher=$(command -v ccache); then
  export CMAKE_C_COMPILER_LAUNCHER=$launcher CMAKE_CXX_COMPILER_LAUNCHER=$launcher
  CCACHE_DIR=$(ccache --get-config cache_dir) # debhelper sets another HOME
  export CCACHE_DIR
fi
(cd "$source" && dpkg-buildpackage --build=binary --no-sign) >"$out/build.log" 2>&1 ||
  { tail -n 30 "$out/build.log" >&2 && fail "dpkg-buildpackage failed; log: $out/build.log"; }
lintian --fail-on error "$out"/*.changes >"$out/lintian.log" || { cat "$out/lintian.log" >&2 && fail "lintian finds errors"; }
cat "$out/lintian.log"
for package in "$out"/*.deb; do
  echo "deb: $package, $(du -k "$package" | cut -f1) kB"
done
if $check; then
  with=()
  for package in "$out"/*.deb; do with+=(--with "$package"); done
  scripts/bare_root.sh "${with[@]}" "$(. /etc/os-release && echo "$VERSION_CODENAME")" "tests/package/debian.sh $out/*.deb"
fi
