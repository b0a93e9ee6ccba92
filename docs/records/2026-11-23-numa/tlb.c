/* Counts how often a program's instruction fetches miss a model of AMD Zen 5's instruction TLBs: 64 entries, fully
   associative, and 2048 entries, 8 ways; once with 4 KiB pages, once with 2 MiB pages. A plugin for qemu-x86_64. */
#include <stdint.h>
#include <stdio.h>
#include <stddef.h>
#define EXPORT __attribute__((visibility("default")))
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct qemu_info_t qemu_info_t;
EXPORT int qemu_plugin_version = 1;
typedef void (*tb_trans)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*tb_exec)(unsigned, void *);
typedef void (*at_exit)(qemu_plugin_id_t, void *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_trans);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, tb_exec, int, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, at_exit, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
#define L1 64
#define SETS 256
#define WAYS 8
struct tlb { uint64_t l1[L1], stamp[L1], l2[SETS][WAYS], stamp2[SETS][WAYS], last, miss1, miss2; };
static struct tlb small, large;
static uint64_t now, instructions;
static void look(struct tlb *t, uint64_t page)
{
    if (page == t->last) return;
    t->last = page;
    now++;
    int victim = 0;
    for (int i = 0; i < L1; i++) {
        if (t->l1[i] == page) { t->stamp[i] = now; return; }
        if (t->stamp[i] < t->stamp[victim]) victim = i;
    }
    t->miss1++;
    t->l1[victim] = page; t->stamp[victim] = now;
    uint64_t *set = t->l2[page % SETS], *stamp = t->stamp2[page % SETS];
    int old = 0;
    for (int i = 0; i < WAYS; i++) {
        if (set[i] == page) { stamp[i] = now; return; }
        if (stamp[i] < stamp[old]) old = i;
    }
    t->miss2++;
    set[old] = page; stamp[old] = now;
}
static void say(void);
static void run(unsigned cpu, void *data)
{
    uint64_t word = (uint64_t)data, at = word & 0xffffffffffff;
    static uint64_t next = 1000000000;
    instructions += word >> 48;
    if (instructions >= next) {
        next += 1000000000;
        say();
    }
    look(&small, at >> 12);
    look(&large, at >> 21);
}
static void made(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    uint64_t word = (uint64_t)qemu_plugin_tb_n_insns(tb) << 48 | (qemu_plugin_tb_vaddr(tb) & 0xffffffffffff);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, run, 0, (void *)word);
}
static void say(void)
{
    double k = instructions / 1000.0;
    fprintf(stderr, "instructions %lu; per 1000: 4 KiB pages: misses of the first level %.3f, of both %.4f; "
            "2 MiB pages: %.4f, %.5f\n",
        instructions, small.miss1 / k, small.miss2 / k, large.miss1 / k, large.miss2 / k);
}
static void told(qemu_plugin_id_t id, void *unused)
{
    say();
}
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int n, char **v)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, made);
    qemu_plugin_register_atexit_cb(id, told, NULL);
    return 0;
}
