#!/bin/bash
# first.sh plain|thp|default OBJECT: Redis with 640 MB; how much is in base pages before its first fork, and how long
# that takes.
mode=$1
folder=$(mktemp -d)
variables=() disable=yes
[ "$mode" = thp ] && variables=(MALLOC_CONF=thp:always) disable=no
[ "$mode" = default ] && variables=(LD_PRELOAD="$2" PALIMPSEST_PAUSE=2ms PALIMPSEST_PAYS_AFTER=100
    PALIMPSEST_THREADS=stop)
env "${variables[@]}" redis-server --port 0 --save "" --enable-debug-command yes --dir "$folder" \
    --disable-thp $disable --unixsocket "$folder/s" >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 100); do [ -S "$folder/s" ] && break; sleep 0.1; done
redis-cli -s "$folder/s" DEBUG POPULATE 1250000 key 400 >"$folder/log"
awk -v mode="$mode" '/^(Anonymous|AnonHugePages|Rss):/ { sum[$1] += $2 / 1024 }
    END { printf "%s: resident %.1f, in huge pages %.1f, in base pages %.1f MiB\n", mode, sum["Rss:"],
          sum["AnonHugePages:"], sum["Anonymous:"] - sum["AnonHugePages:"] }' "/proc/$server/smaps"
redis-cli -s "$folder/s" BGSAVE >"$folder/log"
child=$(cat "/proc/$server/task/$server/children")
[ -n "$child" ] && kill -USR1 $child
sleep 0.5
redis-cli -s "$folder/s" INFO | grep latest_fork_usec
redis-cli -s "$folder/s" SHUTDOWN NOSAVE
wait $server
rm -rf "$folder"
