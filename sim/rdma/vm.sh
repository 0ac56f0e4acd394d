#!/usr/bin/env bash
# Runs a command in a virtual machine that has RDMA devices in software (rdma_rxe), on a host whose
# kernel has none.
#
#   sim/rdma/vm.sh [--netdev veth|pair] [--timeout SECONDS] [--memory MIB] [--env NAME]... \
#                  -- COMMAND [ARGUMENT...]
#   sim/rdma/vm.sh --packages       the Debian packages that must be installed; exit status 1 if one
#                                   is missing
#
#   --netdev veth   one device, rxe0 at 192.0.2.1 (default)
#   --netdev pair   two devices, rxe0 at 192.0.2.1 and rxe1 at 192.0.2.2, with a wire between them
#   --timeout       the machine is stopped after this time (default 600)
#   --memory        its memory (default 2048)
#   --env           a variable of the environment to pass on
#
# The machine boots Debian's kernel with QEMU's emulator, so it needs no KVM. Its root is the
# host's, read-only, below a file system in memory: programs built here run there, and what they
# write is lost. Its environment has TEST_PAGELITH_VM=1.
# Exit status: the command's; 124 after the timeout; 125 if the machine did not run the command.
#
# TEST_PAGELITH_VM_CACHE is the directory of the unpacked kernel (default ~/.cache/pagelith-vm,
# 450 MB). TEST_PAGELITH_VM_PACKAGES is a directory of unpacked packages, such as rdma-core's, which
# the machine sees above the host's root. With it, and with the tools in PATH, nothing has to be
# installed.
set -euo pipefail

fail() {
    echo "vm.sh: $*" >&2
    exit 125
}

netdev=veth seconds=600 mebibytes=2048 variables=()
PATH=$PATH:/sbin:/usr/sbin
packages=${TEST_PAGELITH_VM_PACKAGES:-}
needed="qemu-system-x86 busybox-static kmod cpio xz-utils iproute2 rdma-core ibverbs-providers"

missing=()
for tool in qemu-system-x86_64 busybox modprobe depmod cpio xz ip rdma; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
provider() { compgen -G "$packages/usr/$1/libibverbs/librxe-*.so" >/dev/null; }
provider 'lib/*' || provider 'lib*' || missing+=("the provider librxe of libibverbs")
if [ "${1:-}" = --packages ]; then
    echo "$needed"
    exit $((${#missing[@]} > 0))
fi

while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -ge 2 ] || fail "no value for $1"
    case $1 in
    --netdev) netdev=$2 ;;
    --timeout) seconds=$2 ;;
    --memory) mebibytes=$2 ;;
    --env) variables+=("$2") ;;
    *) fail "no such option: $1" ;;
    esac
    shift 2
done
[ $# -ge 2 ] || fail "no command; see the head of this file"
shift
case $netdev in veth | pair) ;; *) fail "no such network: $netdev" ;; esac
[ ${#missing[@]} -eq 0 ] ||
    fail "missing: ${missing[*]}; as root: apt-get install --no-install-recommends $needed"

here=$(cd "$(dirname "$0")" && pwd)
cache=${TEST_PAGELITH_VM_CACHE:-$HOME/.cache/pagelith-vm}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The kernel: a package that is unpacked, not installed.
fetch_kernel() {
    local package root=$scratch/kernel
    package=$(apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: //p' | head -n 1)
    [ -n "$package" ] || fail "apt knows no linux-image-amd64; run apt-get update"
    mkdir -p "$root" "$cache"
    (cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download "$package") ||
        fail "cannot download $package"
    dpkg-deb -x "$scratch/$package"_*.deb "$root"
    local release=${package#linux-image-}
    depmod -b "$root" "$release"
    rm -rf "$cache/modules" "$cache/release"
    mv "$root/lib/modules/$release" "$cache/modules"
    cp "$root/boot/vmlinuz-$release" "$cache/kernel"
    # Unpacked here the kernel starts 3 s earlier: the emulator is slow to unpack it. Its payload
    # begins with xz's magic bytes.
    local start
    start=$(LC_ALL=C grep -obUaP '\xfd7zXZ\x00' "$cache/kernel" | head -n 1 | cut -d: -f1 || true)
    if [ -n "$start" ]; then
        # Bytes after the payload make xz report an error after it has written all output.
        tail -c "+$((start + 1))" "$cache/kernel" | xz -dc >"$scratch/elf" 2>/dev/null || true
        [ "$(head -c 4 "$scratch/elf" | tail -c 3)" != ELF ] || mv "$scratch/elf" "$cache/kernel"
    fi
    echo "$release" >"$cache/release"
}
[ -s "$cache/release" ] || fetch_kernel
release=$(cat "$cache/release")

# The first file system: busybox and the modules of the devices, in the order in which they load.
# rdma_rxe needs crc32_generic, and does not declare it.
modules="crc32_generic virtio_pci virtio_console 9pnet_virtio 9p overlay veth ib_uverbs rdma_rxe"
first=$scratch/first
mkdir -p "$first"/{bin,dev,proc,sys,modules,top,host} "$scratch/tree/lib/modules"
ln -s "$cache/modules" "$scratch/tree/lib/modules/$release"
for module in $modules; do
    modprobe -d "$scratch/tree" -S "$release" --show-depends "$module" ||
        fail "the kernel has no module $module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$scratch/load"
while read -r file; do
    cp "$file" "$first/modules/"
    basename "$file"
done <"$scratch/load" >"$first/load"
cp "$(command -v busybox)" "$first/bin/busybox"
[ -z "$packages" ] || touch "$first/has-packages"
cp "$here/guest-init.sh" "$first/init"
chmod 755 "$first/init"
(cd "$first" && find . | cpio -o -H newc --quiet) >"$scratch/initrd"

# What the machine reads and writes: the command, and its exit status.
share=$scratch/share
mkdir "$share"
cp "$here/guest.sh" "$share/guest.sh"
{
    printf 'netdev=%q modules=%q release=%q\n' "$netdev" "$cache/modules" "$release"
    printf 'export PATH=%q HOME=%q TEST_PAGELITH_VM=1\n' "$PATH" "$HOME"
    for name in "${variables[@]}"; do
        [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'cd %q\n' "$PWD"
} >"$share/settings"
printf '%q ' "$@" >"$share/command"

folder() { # tag, path, further options
    echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3" \
        "-device virtio-9p-pci,fsdev=$1,mount_tag=$1"
}
status=0
# no_timer_check: on a busy host the emulated timer may tick too late for the kernel's check, which
# then panics.
# Options of `folder` are separate words.
# shellcheck disable=SC2046
timeout -k 5 "$seconds" qemu-system-x86_64 \
    -M q35,usb=off -nodefaults -no-user-config -display none -nic none -no-reboot \
    -accel tcg,thread=multi -cpu max -smp 2 -m "$mebibytes" \
    -kernel "$cache/kernel" -initrd "$scratch/initrd" \
    -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check" \
    -serial "file:$scratch/console" -device virtio-serial-pci \
    -chardev stdio,id=output,signal=off -device virtconsole,chardev=output \
    $(folder host / ,readonly=on) $(folder share "$share" "") \
    ${packages:+$(folder packages "$packages" ,readonly=on)} \
    -device virtio-rng-pci </dev/null || status=$?
case $status in 124 | 137) echo "vm.sh: stopped after $seconds s" >&2 && exit 124 ;; esac
if [ ! -s "$share/status" ]; then
    tail -n 20 "$scratch/console" >&2
    fail "the machine ended without running the command (qemu: $status)"
fi
exit "$(cat "$share/status")"
