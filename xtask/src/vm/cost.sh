# What requests cost: perftest and ours by turns, each with few and with many requests. A line
# `row WHO OPERATION COUNT MEGABYTES_PER_SECOND` for each run, and a mark before and after it.
# The host writes the variables that this text uses in front of it.
set -eu
cd /run

perftest() { # perftest WHO OPERATION COUNT FLAGS...: the client is measured, and what its server does
  local who=$1 operation=$2 count=$3 tool=ib_$2_bw server
  shift 3
  set -- -x 1 -s "$bytes" -t "$depth" -n "$count" "$@"
  "$tool" -d rxe1 "$@" >server.log 2>&1 &
  server=$!
  # Its port, 18515.
  until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
    kill -0 "$server" || { cat server.log >&2; exit 1; }
    sleep 0.1
  done
  "$mark"
  "$tool" -d rxe0 "$@" 10.1.0.2 >client.log 2>&1 || { cat client.log >&2; exit 1; }
  "$mark"
  wait "$server"
  echo "row $who $operation $count $(awk -v size="$bytes" '$1 == size { print $4 }' client.log)"
}

ours() { # ours WHO OPERATION COUNT CALLS...
  local who=$1 operation=$2 count=$3
  shift 3
  "$mark"
  "$requests" flood rxe0 rxe1 "$operation" "$bytes" "$count" "$depth" "$@" >ours.log
  "$mark"
  echo "row $who $operation $count $(sed -n 's/.*: \([0-9.]*\) MB.*/\1/p' ours.log)"
}

for ((turn = 0; turn < turns; turn++)); do
  for operation in write read; do
    for count in "$few" "$many"; do
      perftest perftest "$operation" "$count"
      # For writes it has no events.
      [[ $operation == write ]] || perftest perftest-events "$operation" "$count" -e
      perftest perftest-lists "$operation" "$count" -l 32
      ours lunette "$operation" "$count"
      ours lunette-extended "$operation" "$count" extended
    done
  done
done
