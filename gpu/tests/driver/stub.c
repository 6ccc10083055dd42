// A driver of one device whose memory is the host's, to be opened in place of libcuda. Copies are
// made at once, events come DELAY_US later, and calls to the host come from a thread of its own,
// as late. Built by the test, with parts left out.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef INIT_CODE
#define INIT_CODE 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#define DELAY_US 300
#define RANGES_MAX 4096
#define INVALID 1
#define NOT_READY 600
#define NOT_FOUND 500

typedef int code;
typedef uint64_t address;

struct range {
    address start;
    size_t len;
    int is_device;
};
static struct range ranges[RANGES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(address start, size_t len, int is_device) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX; i++)
        if (!ranges[i].len) {
            ranges[i] = (struct range){start, len, is_device};
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int find(address at, struct range *found) {
    int is_there = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX && !is_there; i++)
        if (ranges[i].len && at - ranges[i].start < ranges[i].len) {
            *found = ranges[i];
            is_there = 1;
        }
    pthread_mutex_unlock(&lock);
    return is_there;
}

static int take(address start, int is_device) {
    int is_there = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX && !is_there; i++)
        if (ranges[i].len && ranges[i].start == start && ranges[i].is_device == is_device) {
            ranges[i].len = 0;
            is_there = 1;
        }
    pthread_mutex_unlock(&lock);
    return is_there;
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// What the context died of. Nobody is called back then.
static volatile code dead;
void stub_poison(code c) { dead = c; }

code cuInit(unsigned flags) { return flags ? INVALID : INIT_CODE; }
#ifndef ONLY_INIT
code cuDriverGetVersion(int *v) { *v = 12080; return 0; }
code cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }
code cuDeviceGet(int *d, int n) { *d = n; return n < DEVICES ? 0 : 101; }
code cuDeviceGetName(char *name, int len, int d) { (void)d; snprintf(name, len, "stub"); return 0; }
code cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = 1 << 30; return 0; }
code cuDeviceGetAttribute(int *v, unsigned which, int d) {
    (void)d;
    switch (which) {
    case 16: *v = 8; return 0;
    case 75: *v = 9; return 0;
    case 76: *v = 0; return 0;
    case 103: *v = 1; return 0;
    case 124: *v = 1; return 0;
    default: return INVALID;
    }
}
code cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &lock; return 0; }
code cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return 0; }
static __thread void *current;
code cuCtxSetCurrent(void *c) { current = c; return c == &lock ? 0 : 201; }

code cuMemAlloc_v2(address *p, size_t n) {
    if (!current) return 201;
    if (n > (1u << 30)) return 2;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, n)) return 2;
    *p = (address)memory;
    add(*p, n, 1);
    return 0;
}
code cuMemFree_v2(address p) {
    if (!take(p, 1)) return INVALID;
    free((void *)p);
    return 0;
}
// For programs that pin by themselves, as the figures' plain copies do.
code cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    (void)flags;
    if (posix_memalign(p, 4096, n)) return 2;
    add((address)*p, n, 0);
    return 0;
}
code cuMemFreeHost(void *p) {
    if (!take((address)p, 0)) return INVALID;
    free(p);
    return 0;
}
code cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    struct range known;
    if (flags != 3) return INVALID;
    if (find((address)p, &known)) return 712;
    add((address)p, n, 0);
    return 0;
}
code cuMemHostUnregister(void *p) { return take((address)p, 0) ? 0 : 713; }
code cuMemHostGetDevicePointer_v2(address *d, void *p, unsigned flags) {
    struct range known;
    if (flags || !find((address)p, &known)) return INVALID;
    *d = (address)p;
    return 0;
}
static code copy(address to, address from, size_t n) {
    struct range a, b;
    int knows_a = find(to, &a), knows_b = find(from, &b);
    // What is known is not left; at least one side is the device's.
    if (knows_a && to - a.start + n > a.len) return INVALID;
    if (knows_b && from - b.start + n > b.len) return INVALID;
    if (!(knows_a && a.is_device) && !(knows_b && b.is_device)) return INVALID;
    memmove((void *)to, (void *)from, n);
    return 0;
}
code cuMemcpyAsync(address to, address from, size_t n, void *s) {
    if (dead) return dead;
    return s ? copy(to, from, n) : INVALID;
}
#ifndef WITHOUT_BATCH
struct location { int type, id; };
struct attributes { int order; struct location from, to; unsigned flags; };
#ifdef OLD_BATCH
code cuMemcpyBatchAsync(address *to, address *from, size_t *n, size_t count, struct attributes *a,
                        size_t *first, size_t attributes, size_t *failed, void *s) {
    *failed = SIZE_MAX;
#else
code cuMemcpyBatchAsync_v2(address *to, address *from, size_t *n, size_t count,
                           struct attributes *a, size_t *first, size_t attributes, void *s) {
#endif
    if (dead) return dead;
    if (!s || attributes != 1 || first[0] != 0 || a->order != 1 || a->flags) return INVALID;
    for (size_t i = 0; i < count; i++) {
        code c = copy(to[i], from[i], n[i]);
        if (c) return c;
    }
    return 0;
}
#endif

code cuStreamCreate(void **s, unsigned flags) { *s = malloc(1); return flags == 1 ? 0 : INVALID; }
code cuStreamDestroy_v2(void *s) { free(s); return 0; }
code cuStreamSynchronize(void *s) { (void)s; usleep(DELAY_US); return dead; }
struct event { uint64_t at; };
code cuEventCreate(struct event **e, unsigned flags) {
    *e = calloc(1, sizeof **e);
    return flags == 2 ? 0 : INVALID;
}
code cuEventRecord(struct event *e, void *s) {
    e->at = now_us() + DELAY_US;
    return dead ? dead : s ? 0 : INVALID;
}
code cuEventQuery(struct event *e) {
    return dead ? dead : now_us() < e->at ? NOT_READY : 0;
}
code cuEventDestroy_v2(struct event *e) { free(e); return 0; }
code cuStreamWaitEvent(void *s, struct event *e, unsigned flags) {
    return s && e->at && !flags ? 0 : INVALID;
}

struct call { void (*function)(void *); void *argument; };
static void *later(void *p) {
    struct call call = *(struct call *)p;
    free(p);
    usleep(DELAY_US + 100);
    if (!dead) call.function(call.argument);
    return NULL;
}
code cuLaunchHostFunc(void *s, void (*function)(void *), void *argument) {
    (void)s;
    struct call *call = malloc(sizeof *call);
    *call = (struct call){function, argument};
    pthread_t thread;
    if (pthread_create(&thread, NULL, later, call)) return 999;
    pthread_detach(thread);
    return 0;
}

code cuModuleLoadData(void **m, const char *text) {
    *m = strdup(text);
    return strstr(text, ".visible .entry") ? 0 : 218;
}
code cuModuleUnload(void *m) { free(m); return 0; }
code cuModuleGetFunction(void **f, void *m, const char *name) {
    *f = m;
    return strstr(m, name) ? 0 : NOT_FOUND;
}
#ifndef WITHOUT_LAUNCH
// The kernel's parameter, as gpu/proto/src/kernel.ptx reads it.
struct job {
    address from, to;
    const uint32_t *pairs;
    uint64_t from_page, to_page, from_loop[4], to_loop[4];
    uint32_t count, pieces, extent[3], vectors;
};
code cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *s, void **parameters, void **extra) {
    if (!s || !gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra)
        return INVALID;
    struct job job;
    memcpy(&job, parameters[0], sizeof job);
    const char *name = strstr(f, "lunette_copy_pages_");
    size_t len = (size_t)job.vectors * atoi(name + strlen("lunette_copy_pages_"));
    for (uint32_t i = 0; i < job.count; i++) {
        if (job.pairs[2 * i] == UINT32_MAX) continue;
        for (uint32_t piece = 0; piece < job.pieces; piece++) {
            uint64_t at[4], rest = piece;
            for (int loop = 3; loop > 0; loop--) {
                at[loop] = rest % job.extent[loop - 1];
                rest /= job.extent[loop - 1];
            }
            at[0] = rest;
            address from = job.from + job.pairs[2 * i] * job.from_page;
            address to = job.to + job.pairs[2 * i + 1] * job.to_page;
            for (int loop = 0; loop < 4; loop++) {
                from += at[loop] * job.from_loop[loop];
                to += at[loop] * job.to_loop[loop];
            }
            code c = copy(to, from, len);
            if (c) return 700;
        }
    }
    return 0;
}
#endif

code cuPointerGetAttribute(void *value, unsigned which, address at) {
    struct range known;
    if (!find(at, &known)) return INVALID;
    switch (which) {
    case 2: *(unsigned *)value = known.is_device ? 2 : 1; return 0;
    case 8: *(unsigned char *)value = 0; return 0;
    case 9: *(int *)value = 0; return 0;
    default: return INVALID;
    }
}
code cuMemGetAddressRange_v2(address *base, size_t *len, address at) {
    struct range known;
    if (!find(at, &known)) return NOT_FOUND;
    *base = known.start;
    *len = known.len;
    return 0;
}

#ifndef WITHOUT_SHARING
code cuPointerSetAttribute(const void *value, unsigned which, address at) {
    struct range known;
    return which == 6 && *(const unsigned *)value == 1 && find(at, &known) ? 0 : INVALID;
}
struct handle { char bytes[64]; };
code cuIpcGetMemHandle(struct handle *h, address at) {
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, &at, sizeof at);
    return 0;
}
// In one process a handle opens the same addresses.
code cuIpcOpenMemHandle_v2(address *at, struct handle h, unsigned flags) {
    struct range known;
    memcpy(at, h.bytes, sizeof *at);
    return flags == 1 && find(*at, &known) ? 0 : 400;
}
code cuIpcCloseMemHandle(address at) { (void)at; return 0; }
code cuMemGetHandleForAddressRange(int *fd, address at, size_t len, unsigned type, uint64_t flags) {
    struct range known;
    if (type != 1 || flags || !find(at, &known) || known.start != at || known.len != len)
        return INVALID;
    *fd = memfd_create("stub-dma-buf", MFD_CLOEXEC);
    return 0;
}
struct properties { int type, handles, location, id; };
static int is_plain(const struct properties *p) {
    return p->type == 1 && p->handles == 1 && p->location == 1 && p->id == 0;
}
code cuMemGetAllocationGranularity(size_t *n, const struct properties *p, unsigned which) {
    *n = 2 << 20;
    return is_plain(p) && !which ? 0 : INVALID;
}
code cuMemCreate(uint64_t *memory, size_t n, const struct properties *p, uint64_t flags) {
    if (!is_plain(p) || flags || n % (2 << 20)) return INVALID;
    int fd = memfd_create("stub-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, n)) return 2;
    *memory = fd;
    return 0;
}
code cuMemRelease(uint64_t memory) { return close(memory) ? INVALID : 0; }
code cuMemAddressReserve(address *at, size_t n, size_t align, address wish, uint64_t flags) {
    if (align || wish || flags) return INVALID;
    void *place = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *at = (address)place;
    return place == MAP_FAILED ? 2 : 0;
}
code cuMemAddressFree(address at, size_t n) { return munmap((void *)at, n) ? INVALID : 0; }
code cuMemMap(address at, size_t n, size_t offset, uint64_t memory, uint64_t flags) {
    if (offset || flags || lseek(memory, 0, SEEK_END) < (off_t)n) return INVALID;
    void *place = mmap((void *)at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, memory, 0);
    return place == MAP_FAILED ? INVALID : 0;
}
code cuMemUnmap(address at, size_t n) {
    take(at, 1);
    void *place = mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return place == MAP_FAILED ? INVALID : 0;
}
struct access { int location, id, flags; };
code cuMemSetAccess(address at, size_t n, const struct access *a, size_t count) {
    if (count != 1 || a->location != 1 || a->id || a->flags != 3) return INVALID;
    add(at, n, 1);
    return mprotect((void *)at, n, PROT_READ | PROT_WRITE) ? INVALID : 0;
}
code cuMemExportToShareableHandle(int *fd, uint64_t memory, unsigned type, uint64_t flags) {
    if (type != 1 || flags) return INVALID;
    *fd = dup(memory);
    return 0;
}
code cuMemImportFromShareableHandle(uint64_t *memory, void *handle, unsigned type) {
    if (type != 1) return INVALID;
    *memory = dup((int)(intptr_t)handle);
    return 0;
}
#endif
#endif
