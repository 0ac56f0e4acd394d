# Run by bash in the virtual machine, as root: makes the RDMA devices, runs the command, and stops
# the machine.
exec </dev/null >/dev/hvc0 2>&1
stty -F /dev/hvc0 raw -echo
ulimit -l unlimited
# Sets netdev, modules and release, and the command's environment and directory.
source /share/settings

mkdir -p "/lib/modules/$release"
mount --bind "$modules" "/lib/modules/$release"
hostname pagelith-vm

# 4200 bytes carry RDMA's largest packets, of 4096.
ip link set lo up
ip link add wire0 type veth peer name wire1
ip address add 192.0.2.1/24 dev wire0
[ "$netdev" = veth ] || ip address add 192.0.2.2/24 dev wire1
for end in wire0 wire1; do
    ip link set "$end" mtu 4200 up
done

# Both addresses are of this machine, so the kernel would deliver packets between them without the
# wire, and rxe refuses such a route. Rules send each packet out of the sender's end, and accept it
# at the other end.
if [ "$netdev" = pair ]; then
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for end in wire0 wire1; do
        conf=/proc/sys/net/ipv4/conf/$end
        echo 0 >"$conf/rp_filter"
        echo 1 >"$conf/accept_local"
        echo 1 >"$conf/arp_ignore"
    done
    ip route add 192.0.2.2 dev wire0 src 192.0.2.1 table 12
    ip route add 192.0.2.1 dev wire1 src 192.0.2.2 table 21
    ip rule add priority 10 iif wire0 lookup local
    ip rule add priority 11 iif wire1 lookup local
    ip rule add priority 12 to 192.0.2.2 lookup 12
    ip rule add priority 13 to 192.0.2.1 lookup 21
    # The rule of priority 0, which sends local addresses to the loopback, comes last.
    ip rule add priority 100 lookup local
    ip rule delete priority 0
    rdma link add rxe1 type rxe netdev wire1
fi
rdma link add rxe0 type rxe netdev wire0

status=0
bash /share/command || status=$?
echo "$status" >/share/status
sync
exec /bin/busybox poweroff -f
