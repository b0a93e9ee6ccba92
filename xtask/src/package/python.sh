palimpsest run --at fork --report -- python3 -I -c '
import os
kept = [bytearray(4000) for _ in range(5000)]
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
'
