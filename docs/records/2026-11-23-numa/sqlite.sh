#!/bin/bash
# sqlite.sh PALIMPSEST SOURCE [TESTS]: builds SQLite's own tests in SOURCE (Debian's source package sqlite3, unpacked;
# needs gcc and tcl-dev), runs them plainly and under `PALIMPSEST run --local-text`, and compares the verdicts. TESTS is
# a file of SOURCE/test, without .test; veryquick unless told. They refuse to run as root: then they run as `nobody`,
# who must be allowed to enter SOURCE's parents.
set -eu
palimpsest=$(realpath "$1") source=$(realpath "$2") tests=${3:-veryquick}
cd "$source"
if ! [ -x testfixture ]; then
    # 2 MiB of text at a place where huge pages fit: functions apart from each other, segments aligned.
    aligned=-Wl,-zcommon-page-size=2097152,-zmax-page-size=2097152
    ./configure --quiet --enable-shared=no CFLAGS="-O2 -fno-pie -no-pie -falign-functions=512 $aligned"
    make -s -j2 testfixture
fi
size testfixture
user=() cache=$(mktemp -d)
if [ "$(id -u)" = 0 ]; then
    user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
    chown nobody "$cache"
fi

# run NAME COMMAND...: what the tests print stays in NAME.log, their verdicts in NAME.verdict.
run() {
    name=$1
    shift
    rm -rf "in-$name"
    mkdir "in-$name"
    [ ${#user[@]} = 0 ] || chown nobody "in-$name"
    (cd "in-$name" && time -p "${user[@]}" env HOME="$PWD" XDG_CACHE_HOME="$cache" "$@" ../testfixture \
        "../test/$tests.test" >"../$name.log" 2>&1) 2>"$name.time" || true
    # One by one in any order; and how many there were.
    grep -aE '^! |errors out of|^!Failures' "$name.log" | sort >"$name.verdict" || true
    echo "$name: $(grep -a 'errors out of' "$name.log" || tail -n 1 "$name.log"), $(grep -a user "$name.time")"
    grep -ahE '^palimpsest: ' "$name.log" | sort | uniq -c | sort -rn | head -n 3
}

under=("$palimpsest" run --local-text --heirs --no-freeze)
run plain env &
run local--copies env PALIMPSEST_REPORT=stderr "${under[@]}" --copies --
wait
run local--shared env PALIMPSEST_REPORT=stderr "${under[@]}" --copies --shared -- &
run local--reread env PALIMPSEST_REPORT=stderr "${under[@]}" --reread --
wait
for verdict in local--*.verdict; do
    diff plain.verdict "$verdict" && echo "$verdict: as plainly"
done
