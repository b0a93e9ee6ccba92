#!/bin/bash
# redis.sh NAME COMMAND...: six saves of 640 MB by an idle Redis that COMMAND starts.
name=$1; shift; d=/tmp/redis-threads/$name; rm -rf $d; mkdir -p $d; cd $d
("$@" redis-server --port 7788 --save "" --dir $d --enable-debug-command yes > log 2>&1 & echo $! > pid); sleep 1
redis-cli -p 7788 debug populate 1140000 key 400 >/dev/null
for i in 1 2 3 4 5 6; do redis-cli -p 7788 bgsave >/dev/null; for t in $(seq 40); do sleep 0.5; redis-cli -p 7788 info persistence | grep -q "rdb_bgsave_in_progress:0" && break; done; sleep 2; redis-cli -p 7788 info stats | grep latest_fork; done
redis-cli -p 7788 shutdown nosave; sleep 0.5; cat report 2>/dev/null | head -12; grep palimpsest log
