# Commands per second over NVMe/TCP: the kernel's two ends and ours, by turns. A line `row HOST TARGET WHAT IOPS` for each run.
# The host writes the variables that this text uses in front of it.
set -eu
cd /run
kernel=127.0.0.1:4420 ours=127.0.0.1:4430
ours_nqn=nqn.2026-01.lunette:disk

attach() { # attach PORT NQN: the kernel's host; its device in `device`
  local answer subsystem
  exec 3<>/dev/nvme-fabrics
  printf 'transport=tcp,traddr=127.0.0.1,trsvcid=%s,nqn=%s,nr_io_queues=%s,queue_size=64,hostnqn=%s,hostid=%s' \
    "$1" "$2" "$queues" nqn.2026-01.example:kernel-host 00000000-0000-4000-8000-000000000001 >&3
  read -r answer <&3
  exec 3>&-
  for ((tries = 0; tries < 100; tries++)); do
    for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
      device=/dev/nvme${subsystem##*nvme-subsys}n1
      [[ $(<"$subsystem/subsysnqn") == "$2" && -b $device ]] && return
    done
    sleep 0.1
  done
  echo "no namespace: $answer" >&2
  exit 1
}

by_kernel() { # by_kernel TARGET DEVICE WHAT DEPTH JOBS FLAGS...
  local target=$1 device=$2 what=$3 depth=$4 jobs=$5
  shift 5
  # It is to do as little beside as it can.
  fio --name=run --filename="$device" --direct=1 --ioengine=io_uring --fixedbufs --registerfiles --gtod_reduce=1 \
    --norandommap --iodepth="$depth" --numjobs="$jobs" --thread --cpus_allowed="0-$((queues - 1))" \
    --cpus_allowed_policy=split --bs=4k --time_based --runtime="$seconds" --group_reporting --minimal "$@" >fio.log
  echo "row kernel $target $what $(awk -F';' '{ print $8 + $49 }' fio.log)"
}

by_us() { # by_us TARGET ADDRESS NQN WHAT DEPTH CORES FLAGS...
  local target=$1 address=$2 nqn=$3 what=$4 depth=$5 cores=$6
  shift 6
  "$lunette" nvme bench "$address" "$nqn" --depth "$depth" --cores "$cores" --seconds "$seconds" "$@" >ours.log
  echo "row ours $target $what $(sed 's/.*"iops":\([0-9]*\).*/\1/' ours.log)"
}

"$lunette" nvme serve --json --memory "${megabytes}MiB" --listen "$ours" --cores "$server_cores" >served.log &
until [[ -s served.log ]]; do sleep 0.1; done
attach 4420 "$kernel_nqn"
of_kernel=$device
attach 4430 "$ours_nqn"
of_ours=$device
for disk in "$of_kernel" "$of_ours"; do
  # What was never written would be read from nowhere.
  dd if=/dev/zero of="$disk" bs=1M count="$megabytes" oflag=direct status=none
done

for ((turn = 0; turn < turns; turn++)); do
  for what in read write; do
    if [[ $what == write ]]; then flag=--write; else flag=; fi
    by_kernel kernel "$of_kernel" "$what" 32 "$queues" --rw="rand$what"
    by_us kernel "$kernel" "$kernel_nqn" "$what" 32 "$queues" $flag
    by_kernel ours "$of_ours" "$what" 32 "$queues" --rw="rand$what"
    by_us ours "$ours" "$ours_nqn" "$what" 32 "$queues" $flag
  done
  by_kernel kernel "$of_kernel" one 1 1 --rw=randread
  by_us kernel "$kernel" "$kernel_nqn" one 1 1
  by_kernel ours "$of_ours" one 1 1 --rw=randread
done
kill %1
