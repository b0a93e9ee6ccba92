#!/bin/bash
# python.sh OBJECT PYTHON FOLDER MODULE...: runs modules of Python's own tests in FOLDER, plainly and with the preload
# object as `palimpsest run --local-text=all --heirs --no-freeze --report` starts it, and compares the verdict of
# each module.
set -u
object=$1 python=$2 folder=$3
shift 3
mkdir -p "$folder/in"
cd "$folder/in" || exit 1
# run NAME COMMAND...: what is printed stays in NAME.log, the verdicts in NAME.verdict.
run() {
    name=$1
    shift
    (time -p env --default-signal "$@" -m test --timeout 1200 -v "${modules[@]}") >"../$name.log" 2>&1
    verdicts='^(Ran [0-9]+ tests|OK.*|FAILED.*|test_[a-z0-9_]+ (failed|skipped).*|[0-9:]+ load.*\] test_[a-z0-9_]+)'
    grep -aoE "$verdicts" "../$name.log" | sed -e 's/^.*\] //' >"../$name.verdict"
    grep -a '^user' "../$name.log" | sed "s/^/$name: /"
    grep -ahoE '^palimpsest: .*KiB of text' "../$name.log" | sort | uniq -c | sort -rn | head -n 4
}
modules=("$@")
run plain "$python"
run local env LD_PRELOAD="$object" PALIMPSEST_TEXT=local,all,heirs PALIMPSEST_FREEZE=off PALIMPSEST_REPORT=stderr \
    "$python"
diff ../plain.verdict ../local.verdict && echo "the same verdicts: $(grep -c '^test_' ../plain.verdict) modules"
