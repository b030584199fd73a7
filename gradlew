#!/bin/sh
# Runs the Gradle of this machine on this build, with any arguments.
#
# What the build needs beyond a JDK 17 (Gradle 4.4 or newer, g++, CMake, Ninja, doctest) is installed from the
# distribution's packages where that needs no password; otherwise the script says what to install, and stops.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() { echo "gradlew: $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# The JDK ---------------------------------------------------------------------------------------------------

# Prints the feature release of the JDK in folder $1, or nothing where there is none.
jdk_release() {
  [ -x "$1/bin/javac" ] && sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$1/release" 2>/dev/null
}

# Sets JAVA_HOME to the first JDK 17+ among: itself, the javac on the PATH, the distribution's folder.
find_jdk() {
  if have javac; then on_path=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")"); else on_path=; fi
  for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/*; do
    release=$(jdk_release "$home" || true)
    if [ "${release:-0}" -ge 17 ]; then
      export JAVA_HOME="$home"
      return
    fi
  done
  say 'no JDK 17 or newer in JAVA_HOME, on the PATH or in /usr/lib/jvm'
  die '(Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)'
}

# Tools -----------------------------------------------------------------------------------------------------

# Prints the version of the Gradle on the PATH: from the name of its launcher, because asking it takes a second.
gradle_version() {
  lib=$(dirname "$(dirname "$(readlink -f "$(command -v gradle)")")")/lib
  version=$(ls "$lib" 2>/dev/null | sed -n 's/^gradle-launcher-\([0-9.]*[0-9]\).*\.jar$/\1/p' | head -n 1)
  [ -n "$version" ] || version=$(gradle --version 2>/dev/null | sed -n 's/^Gradle //p')
  echo "$version"
}

# Whether the version on standard input is 4.4 or newer.
is_recent() { awk -F. '{ exit !($1 > 4 || ($1 == 4 && $2 >= 4)) }'; }

# Prints the packages that hold what is missing.
missing_packages() {
  if ! have gradle || ! gradle_version | is_recent; then echo gradle; fi
  have g++ || echo g++
  have cmake || echo cmake
  have ninja || echo ninja-build
  if ! have g++ || ! echo '#include <doctest/doctest.h>' | g++ -E -x c++ - >/dev/null 2>&1; then echo doctest-dev; fi
}

find_jdk
missing=$(missing_packages | tr '\n' ' ')
if [ -n "$missing" ]; then
  # shellcheck disable=SC2086
  "$root/ci/install-packages" $missing
  missing=$(missing_packages | tr '\n' ' ')
  [ -z "$missing" ] || die "still missing after installation: $missing"
fi

# Gradle ----------------------------------------------------------------------------------------------------

# Gradle 4 reaches into java.lang, which a JDK 17 allows only when asked.
export GRADLE_OPTS="${GRADLE_OPTS:-} --add-opens=java.base/java.lang=ALL-UNNAMED"
# Continuous integration wants neither processes that stay behind nor progress bars.
if [ -n "${CI:-}" ]; then set -- --no-daemon --console=plain "$@"; fi
exec gradle -p "$root" "$@"
