# Redis saves in a forked child while it is frozen.
cd /tmp || exit 1
redis() { redis-cli -s /tmp/socket "$@"; }
palimpsest run --threads stop --report=/tmp/report -- \
    redis-server --port 0 --unixsocket /tmp/socket --save '' >/tmp/log &
# A file of answers instead of a pipe into grep, which is missing here.
answers() {
    redis "$@" >/tmp/answer 2>&1
}
has() {
    while read -r line; do case $line in $1*) return 0 ;; esac; done </tmp/answer
    return 1
}
tries=0
until answers ping && has PONG; do
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || exit 1
    sleep 0.1
done
answers eval 'for key = 1, 200000 do redis.call("set", key, key) end return "full"' 0 && has full || exit 1
answers bgsave || exit 1
until answers info persistence && has rdb_bgsave_in_progress:0; do sleep 0.1; done
has rdb_last_bgsave_status:ok || exit 1
redis shutdown nosave
wait
cat /tmp/report >&2
[ -s /tmp/dump.rdb ]
