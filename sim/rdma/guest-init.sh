#!/bin/busybox sh
# The first program of the virtual machine: loads modules, mounts the host's root below a file
# system in memory, and starts guest.sh in it.
bb=/bin/busybox
stop() {
    echo "guest-init.sh: $*" >/dev/console
    $bb poweroff -f
}
$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
while read -r module; do
    $bb insmod "/modules/$module" || stop "cannot load $module"
done </load

$bb mount -t tmpfs -o size=70% top /top
$bb mkdir /top/changes /top/work /top/root
nine="-t 9p -o trans=virtio,version=9p2000.L,msize=524288"
$bb mount $nine,ro,cache=loose host /host || stop "cannot mount the host's root"
lower=/host
if [ -e /has-packages ]; then
    $bb mkdir /top/packages
    $bb mount $nine,ro,cache=loose packages /top/packages || stop "cannot mount the packages"
    lower=/top/packages:/host
fi
layers="lowerdir=$lower,upperdir=/top/changes,workdir=/top/work"
$bb mount -t overlay -o "$layers" overlay /top/root || stop "cannot mount the root"

root=/top/root
$bb mkdir -p $root/share $root/proc $root/sys $root/dev $root/run $root/tmp
$bb mount $nine share $root/share || stop "cannot mount the share"
$bb mount -t proc proc $root/proc
$bb mount -t sysfs sys $root/sys
$bb mount -t devtmpfs dev $root/dev
$bb mkdir -p $root/dev/shm $root/dev/pts
$bb mount -t tmpfs shm $root/dev/shm
$bb mount -t devpts pts $root/dev/pts
$bb mount -t tmpfs run $root/run
exec $bb chroot $root /bin/bash /share/guest.sh
