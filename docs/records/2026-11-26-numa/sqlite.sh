#!/bin/bash
# sqlite.sh PALIMPSEST SOURCE [TESTS]: builds SQLite's own tests in SOURCE (Debian's source package sqlite3, unpacked;
# needs gcc and tcl-dev) as the package does, runs them plainly and under `PALIMPSEST run --local-text=all`, and
# compares the verdicts. TESTS is a file of SOURCE/test, without .test; veryquick unless told. They refuse to run as
# root: then they run as `nobody`, who must be allowed to enter SOURCE's parents.
set -eu
palimpsest=$(realpath "$1") source=$(realpath "$2") tests=${3:-veryquick}
cd "$source"
if ! [ -x testfixture ]; then
    ./configure --quiet --enable-shared=no CFLAGS=-O2
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

under=("$palimpsest" run --local-text=all --heirs --no-freeze --report)
run plain env
run all "${under[@]}" --
run all-shared "${under[@]}" --shared --
for verdict in all*.verdict; do
    diff plain.verdict "$verdict" && echo "$verdict: as plainly"
done
