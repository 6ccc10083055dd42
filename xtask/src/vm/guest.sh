# What the guest does between its boot and its end. The host writes the variables that this text
# uses in front of it. Reports go to the control port: `ready`, `failed WHY`, `exit STATUS`.
set -Eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

power_off() {
  sleep 0.2 # what is on its way to the host arrives first
  echo b >/proc/sysrq-trigger
  sleep 60
}
fail() {
  trap - ERR
  echo "failed $*" >&9
  power_off
}
port() { # the device of the virtio-serial port of this name
  local name
  name=$(grep -lx "$1" /sys/class/virtio-ports/*/name)
  name=${name%/name}
  echo "/dev/${name##*/}"
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
exec 9>"$(port control)"
trap 'fail "guest.sh line $LINENO: $BASH_COMMAND"' ERR
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
ln -sfn /proc/self/fd /dev/fd
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
# An overlay on 9p is no place for temporary files; but a tree that lies in /tmp is to stay visible.
case $kernel in
  /tmp/*)
    export TMPDIR=/run/tmp
    mkdir /run/tmp
    ;;
  *) export TMPDIR=/tmp ;;
esac
mount -t tmpfs tmpfs $TMPDIR
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/lib/modules/$release"
mount --bind "$kernel/lib/modules/$release" "/lib/modules/$release"
ulimit -l unlimited
ulimit -n 65536
ulimit -c 0
for i in "${!writable[@]}"; do
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=none "rw$i" "${writable[i]}"
done
echo lunette-vm >/proc/sys/kernel/hostname
ip link set lo up

# Two ports linked to each other in one network namespace, since Soft-RoCE receives in the first
# one only. Both have addresses of this machine: accept packets "from ourselves", and answer for
# an address at its own port alone.
link_ports() {
  modprobe veth
  ip link add net0 type veth peer name net1
  local i ipv4
  for i in 0 1; do
    ipv4=/proc/sys/net/ipv4/conf/net$i
    echo 1 >"$ipv4/accept_local"
    echo 0 >"$ipv4/rp_filter"
    echo 1 >"$ipv4/arp_ignore"
    echo 2 >"$ipv4/arp_announce"
    echo 0 >"/proc/sys/net/ipv6/conf/net$i/accept_dad"
    ip link set "net$i" mtu 4200 up
    ip address add "10.1.0.$((i + 1))/24" dev "net$i"
  done
}

add_rdma() { # add_rdma rxe|siw
  link_ports
  modprobe crc32_generic # the checksum of Soft-RoCE; kernels before 6.13 do not load it
  modprobe -a ib_uverbs rdma_ucm
  case $1 in
    rxe) modprobe rdma_rxe ;;
    siw) modprobe siw ;;
  esac
  rdma link add "${1}0" type "$1" netdev net0
  rdma link add "${1}1" type "$1" netdev net1
}

add_nvmet() { # add_nvmet MEGABYTES: a target on port 4420 with a namespace in memory
  local disk=/sys/kernel/config/nullb/nullb0 target=/sys/kernel/config/nvmet
  local subsystem=$target/subsystems/$nqn
  modprobe configfs
  modprobe null_blk nr_devices=0
  modprobe -a nvmet nvmet_tcp nvme_tcp
  mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
  mkdir "$disk"
  echo "$1" >"$disk/size"
  echo 1 >"$disk/memory_backed"
  echo 1 >"$disk/discard"
  echo 1 >"$disk/power"
  mkdir -p "$subsystem/namespaces/1"
  echo 1 >"$subsystem/attr_allow_any_host"
  echo /dev/nullb0 >"$subsystem/namespaces/1/device_path"
  echo 1 >"$subsystem/namespaces/1/enable"
  mkdir "$target/ports/1"
  echo tcp >"$target/ports/1/addr_trtype"
  echo ipv4 >"$target/ports/1/addr_adrfam"
  echo 0.0.0.0 >"$target/ports/1/addr_traddr"
  echo 4420 >"$target/ports/1/addr_trsvcid"
  ln -s "$subsystem" "$target/ports/1/subsystems/"
}

add_nvme() { # add_nvme: the emulated drive, its character device as /dev/ngN whatever its name
  modprobe nvme poll_queues=1
  local attempt block nsid
  for attempt in {1..200}; do
    [[ -e /dev/nvme0n1 && -e /dev/ng0n1 ]] && break
    sleep 0.05
  done
  for block in /sys/block/nvme0n*; do
    nsid=$(<"$block/nsid")
    ln -sfn "${block##*/}" "/dev/ns$nsid"
    ln -sfn "ng${block##*/nvme}" "/dev/ng$nsid"
  done
}

# Mounting has been seen to say "No such file or directory" for a moment, or for as long as the machine lives.
add_scratch() { # add_scratch: temporary files on the first half of the drive, the rest for who writes to it itself
  local tries=0
  modprobe -a crc32c_generic ext4
  mkfs.ext4 -q -F /dev/ns1 512m
  until mount /dev/ns1 "$TMPDIR" 2>/dev/console; do
    if ((++tries == 10)); then
      { ls -l /dev/n[sgv]*; grep -A 9 crc32c /proc/crypto; dmesg | tail -n 15; } >/dev/console
      fail "no file system on the drive"
    fi
    sleep 1
    add_nvme
  done
  environment+=("TMPDIR=$TMPDIR" LUNETTE_NVME_COMMANDS=/dev/ng1 LUNETTE_NVME_BLOCKS=/dev/ns1)
}

add_forwarded() { # the port that what is forwarded comes in by, with the address that QEMU expects there
  modprobe virtio_net
  local port
  for port in /sys/class/net/*; do
    [[ -e $port/device ]] || continue
    port=${port##*/}
    ip address add 10.0.2.15/24 dev "$port"
    ip link set "$port" up
  done
}

if [[ $rdma != none ]]; then add_rdma "$rdma"; fi
if ((nvmet_megabytes)); then add_nvmet "$nvmet_megabytes"; fi
if ((nvme_drive)); then add_nvme; fi
if ((scratch)); then add_scratch; fi
if ((forwards)); then add_forwarded; fi

echo ready >&9
trap - ERR
cd "$directory" || fail "no $directory"
# A port takes one opener; behind pipes the command may open its outputs as often as it likes.
mkfifo /run/out /run/err
cat /run/out >"$(port out)" &
readers=$!
cat /run/err >"$(port err)" &
readers+=" $!"
env -i "${environment[@]}" "${command[@]}" </dev/null >/run/out 2>/run/err 9>&-
status=$?
# A daemon that the command left behind would keep the pipes open for ever.
{
  sleep 3
  kill $readers
} 2>/dev/null &
wait $readers 2>/dev/null
echo "exit $status" >&9
power_off
