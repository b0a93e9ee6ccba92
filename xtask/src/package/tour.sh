# The tour, one round of each part. Parts that cannot run say so: there is no Python here.
palimpsest tour --check --json /tmp/tour.json >/tmp/tour || exit 1
cat /tmp/tour >&2
# A file of figures instead of a pipe into grep, which is missing here.
measured=0
while read -r line; do
    case $line in *'"id": "fork.512m.frozen"'*) measured=1 ;; esac
done </tmp/tour.json
[ "$measured" = 1 ]
