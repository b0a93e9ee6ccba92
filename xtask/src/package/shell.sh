# Runs `doctor`, and a shell that forks.
palimpsest doctor >/tmp/doctor
[ $? -le 3 ] || exit 1
palimpsest run --at fork --report -- sh -c '(exit 0); exit 0'
