/* A plugin of QEMU that counts the instructions that the guest executes, of programs and of the
 * kernel apart. When the guest executes the marker (mark.c), both counts are appended to a file.
 *
 * Part of the interface of version 1 is declared here, so that no header is needed:
 * https://qemu.readthedocs.io/en/v7.2.0/devel/tcg-plugins.html#api */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct tb;
struct insn;
typedef uint64_t plugin_id;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct tb *));
extern size_t qemu_plugin_tb_n_insns(const struct tb *);
extern struct insn *qemu_plugin_tb_get_insn(const struct tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct insn *);
extern size_t qemu_plugin_insn_size(const struct insn *);
extern uint64_t qemu_plugin_insn_vaddr(const struct insn *);
/* Operation 0 adds; flags 0: the callback reads no registers. */
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct insn *, int operation, void *, uint64_t);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, void (*)(unsigned, void *), int flags,
                                                   void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

/* nopl 0x54544e4c(%rax,%rax,1), which no compiler writes. */
static const unsigned char MARKER[] = {0x0f, 0x1f, 0x84, 0x00, 0x4c, 0x4e, 0x54, 0x54};

/* Of programs, of the kernel: whose addresses have the highest bit. */
static uint64_t counts[2];
static FILE *file;

static void marked(unsigned cpu, void *data) {
  (void)cpu;
  (void)data;
  fprintf(file, "%llu %llu\n", (unsigned long long)counts[0], (unsigned long long)counts[1]);
  fflush(file);
}

static void translated(plugin_id id, struct tb *tb) {
  (void)id;
  size_t count = qemu_plugin_tb_n_insns(tb);
  for (size_t i = 0; i < count; i++) {
    struct insn *insn = qemu_plugin_tb_get_insn(tb, i);
    uint64_t *counted = &counts[qemu_plugin_insn_vaddr(insn) >> 63];
    qemu_plugin_register_vcpu_insn_exec_inline(insn, 0, counted, 1);
    if (qemu_plugin_insn_size(insn) == sizeof MARKER &&
        !memcmp(qemu_plugin_insn_data(insn), MARKER, sizeof MARKER))
      qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, 0, NULL);
  }
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc,
                                                               char **argv) {
  (void)info;
  const char *name = argc > 0 ? strchr(argv[0], '=') : NULL;
  if (!name || !(file = fopen(name + 1, "w")))
    return -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  return 0;
}
