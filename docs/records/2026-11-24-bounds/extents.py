import os, sys, time, mmap, random
GIB = 1 << 30
size = 2 * GIB
m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
for o in range(0, size, 4096): m[o] = 1
random.seed(7)
def fork():
    t = time.perf_counter()
    p = os.fork()
    if p == 0: os._exit(0)
    d = time.perf_counter() - t
    os.waitpid(p, 0)
    return d * 1e3
def mem():
    t = open('/proc/self/status').read()
    g = lambda k: int(t.split(k + ':')[1].split()[0]) >> 10
    return g('RssAnon'), g('RssFile'), g('RssShmem')
def cg():
    s = open('/proc/meminfo').read()
    g = lambda k: int(s.split(k + ':')[1].split()[0]) >> 10
    return g('Shmem') + g('AnonPages')
first = [fork() for _ in range(3)]
base = cg()
print('first', ' '.join(f'{x:.1f}' for x in first), 'meminfo', base, flush=True)
peak = base
for name, pages in (('none', lambda i: []),
                    ('hot 16 MiB', lambda i: [random.randrange(4096) * 4096 for _ in range(20)]),
                    ('one anywhere', lambda i: [random.randrange(size // 4096) * 4096]),
                    ('100 anywhere', lambda i: [random.randrange(size // 4096) * 4096 for _ in range(100)])):
    ts = []
    for i in range(150):
        for o in pages(i): m[o] = (m[o] + 1) & 255
        ts.append(fork())
        peak = max(peak, cg())
    ts2 = sorted(ts)
    print(f'{name:14} mean {sum(ts)/len(ts):7.3f} median {ts2[75]:7.3f} p90 {ts2[135]:7.3f} max {ts2[-1]:7.1f} now {cg()-base:+5d} peak {peak-base:+5d} MiB', flush=True)
