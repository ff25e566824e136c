#!/bin/sh
# What aie can use but cannot install as an ordinary user: Debian packages, kernel headers for BCC, mounts. Run as root, any
# number of times; what is done already is passed over. Nothing is started, and /lib/modules is not touched.
set -eu

PRIVATE=${AIE_SYSTEM_DIR:-/usr/local/lib/aie}

say() { printf 'setup-system: %s\n' "$*"; }
fail() { printf 'setup-system: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "needs root: run it with sudo"
command -v apt-get >/dev/null || fail "needs apt-get (Debian or Ubuntu); elsewhere install BCC, kernel headers and promtool by other means"
export DEBIAN_FRONTEND=noninteractive

package_lists() {
    find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' | grep -q . && [ -z "${1:-}" ] || apt-get update -qq
}

packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    say "installing$missing"
    package_lists anew
    # shellcheck disable=SC2086 # a list of names
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# BCC compiles against any kernel's headers, since the programs read no kernel structs. Debian keeps a kernel's headers in two
# trees, neither of which is enough alone; they are merged by symbolic links in a directory of our own.
kernel_headers() {
    [ -e "$PRIVATE/kernel-source/include" ] && return 0
    arch=$(dpkg --print-architecture)
    tree=$(find /usr/src -maxdepth 1 -name "linux-headers-*-$arch" | sort -V | tail -n 1)
    if [ -z "$tree" ]; then
        package_lists
        package=$(apt-cache search --names-only "^linux-headers-[0-9].*-$arch\$" | cut -d ' ' -f 1 | grep -v -e cloud -e rt- | sort -V | tail -n 1)
        [ -n "$package" ] || { say "no linux-headers package found: eBPF programs cannot be compiled"; return 0; }
        say "installing $package"
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null
        tree=/usr/src/$package
    fi
    common=$(printf '%s\n' "$tree" | sed "s/-$arch\$/-common/")
    mkdir -p "$PRIVATE/kernel-source.new"
    [ -d "$common" ] && cp -rs "$common/." "$PRIVATE/kernel-source.new/"
    cp -rsf "$tree/." "$PRIVATE/kernel-source.new/"
    [ -e "$PRIVATE/kernel-source.new/include" ] || fail "the headers in $tree hold no include directory"
    mv "$PRIVATE/kernel-source.new" "$PRIVATE/kernel-source"
    say "kernel headers for BCC: $PRIVATE/kernel-source"
}

# Of a package that would start a server or bring a hundred programs, only the one that the tests use is taken.
one_program() { # package, its file, name
    command -v "$3" >/dev/null && return 0
    [ -x "$PRIVATE/bin/$3" ] && return 0
    package_lists
    scratch=$(mktemp -d)
    (cd "$scratch" && apt-get -o APT::Sandbox::User=root download -qq "$1" && dpkg-deb -x "$1"_*.deb tree)
    mkdir -p "$PRIVATE/bin"
    cp "$scratch/tree/$2" "$PRIVATE/bin/$3"
    rm -rf "$scratch"
    say "$3: $PRIVATE/bin/$3"
}

its_files() { # package, a directory of it that the program cannot do without
    [ -d "/$2" ] && return 0
    package_lists
    scratch=$(mktemp -d)
    (cd "$scratch" && apt-get -o APT::Sandbox::User=root download -qq "$1" && dpkg-deb -x "$1"_*.deb tree)
    mkdir -p "/${2%/*}"
    cp -r "$scratch/tree/$2" "/$2"
    rm -rf "$scratch"
    say "$1: /$2"
}

mounted() { # type, directory
    [ -d "$2" ] || { say "$2 does not exist: this kernel has no $1"; return 0; }
    grep -q " $2 $1 " /proc/mounts && return 0
    mount -t "$1" "$1" "$2" 2>/dev/null || say "$1 cannot be mounted at $2 (a container without the privilege?)"
}

packages python3-venv python3-bpfcc bpftrace
packages gcc g++ libc6-dev # simulated GPUs and the programs of tests are compiled
packages gdb systemd       # beside gdb native stacks are the same; systemd checks its unit
kernel_headers
one_program prometheus usr/bin/promtool promtool            # checks our metrics page and alert rules
one_program prometheus usr/bin/prometheus prometheus        # scrapes the agent in tests and in make stack
one_program prometheus-alertmanager usr/bin/prometheus-alertmanager alertmanager # gets the alerts there
one_program prometheus-alertmanager usr/bin/amtool amtool   # checks its configuration
its_files prometheus-alertmanager usr/share/prometheus/alertmanager # templates, which it looks for only there
one_program bpfcc-tools usr/sbin/memleak-bpfcc memleak-bpfcc # beside it, outstanding memory must be the same
packages libjson-c5 liblz4-1 libuuid1 libuv1 zlib1g             # for netdata, of which only the program is taken: nothing starts
one_program netdata-core usr/sbin/netdata netdata           # what hooks send to another StatsD server is read back from it
mounted tracefs /sys/kernel/tracing
mounted debugfs /sys/kernel/debug
mounted bpf /sys/fs/bpf
say "done"
