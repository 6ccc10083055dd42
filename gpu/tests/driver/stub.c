// A driver of one device, to be opened in place of libcuda. Its memory is pages of a memfd, which are
// mapped twice: at the address that the program is told, where nobody may touch them, and where this
// driver does. So an access by the host ends the process, as it would on most machines with a GPU.
// What is queued in a stream is done by a thread of its own, DELAY_US later and in order; memory that was
// given back by then ends the process too. Built by tests, with parts left out.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
#define PAGE 4096
#define INVALID 1
#define NOT_STARTED 3
#define NOT_READY 600
#define NOT_FOUND 500

typedef int code;
typedef uint64_t address;

// Memory that is known. The device's has a descriptor, and a place where this driver reaches it; the host's
// is reached where it is.
// What is mapped into addresses that a program has reserved is told to range over all of these.
struct range {
    address start;
    size_t len;
    int is_device, fd;
    char *place;
    int has_access;
    address reserved;
    size_t reserved_len;
};
static struct range ranges[RANGES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int add(struct range range) {
    int is_added = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX && !is_added; i++)
        if (!ranges[i].len) {
            ranges[i] = range;
            is_added = 1;
        }
    pthread_mutex_unlock(&lock);
    return is_added;
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

static int take(address start, int is_device, struct range *taken) {
    int is_there = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX && !is_there; i++)
        if (ranges[i].len && ranges[i].start == start && ranges[i].is_device == is_device) {
            *taken = ranges[i];
            ranges[i].len = 0;
            is_there = 1;
        }
    pthread_mutex_unlock(&lock);
    return is_there;
}

static size_t whole_pages(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

// Makes pages known as the device's: at `at`, or where the system has room.
static code map_device(address at, size_t len, int fd, address *result) {
    size_t mapped = whole_pages(len);
    int fixed = at ? MAP_FIXED : 0;
    char *told = mmap((void *)at, mapped, PROT_NONE, MAP_SHARED | fixed, fd, 0);
    char *place = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (told == MAP_FAILED || place == MAP_FAILED) return 2;
    *result = (address)told;
    return add((struct range){(address)told, len, 1, fd, place, 1, (address)told, len}) ? 0 : 2;
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// What the context died of. Nothing more is done then, and nobody is called back.
static volatile code dead;
// Held while a stream does something.
static pthread_mutex_t doing = PTHREAD_MUTEX_INITIALIZER;
void stub_poison(code c) {
    pthread_mutex_lock(&doing);
    dead = c;
    pthread_mutex_unlock(&doing);
}

static volatile int is_started;
code cuInit(unsigned flags) {
    is_started = 1;
    return flags ? INVALID : INIT_CODE;
}
#ifndef ONLY_INIT
code cuDriverGetVersion(int *v) { *v = 12080; return 0; }
code cuDeviceGetCount(int *n) { *n = DEVICES; return is_started ? 0 : NOT_STARTED; }
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

static int allocations;
// How many allocations have not been given back.
int stub_allocations(void) { return __atomic_load_n(&allocations, __ATOMIC_SEQ_CST); }
code cuMemAlloc_v2(address *p, size_t n) {
    if (!current) return 201;
    if (!n || n > (1u << 30)) return n ? 2 : INVALID;
    int fd = memfd_create("stub-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, whole_pages(n))) return 2;
    __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return map_device(0, n, fd, p);
}
code cuMemFree_v2(address p) {
    struct range taken;
    if (!take(p, 1, &taken)) return INVALID;
    // The addresses stay the driver's, and nobody's to touch.
    mmap((void *)p, whole_pages(taken.len), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    munmap(taken.place, whole_pages(taken.len));
    close(taken.fd);
    __atomic_sub_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return 0;
}
// For programs that pin by themselves, as the figures' plain copies do.
code cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    (void)flags;
    if (posix_memalign(p, PAGE, n)) return 2;
    add((struct range){(address)*p, n, 0, -1, *p, 1, (address)*p, n});
    return 0;
}
code cuMemFreeHost(void *p) {
    struct range taken;
    if (!take((address)p, 0, &taken)) return INVALID;
    free(p);
    return 0;
}
// Whether the program may write to what is mapped there.
static int is_writable(address at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long first, end;
    char rights[8], line[512];
    int is_found = 0;
    while (maps && !is_found && fgets(line, sizeof line, maps))
        is_found = sscanf(line, "%lx-%lx %7s", &first, &end, rights) == 3 && at - first < end - first;
    if (maps) fclose(maps);
    return is_found && rights[1] == 'w';
}
// For the device to read and write; with 8 to read only, as memory must be that is mapped so.
code cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    struct range known;
    if (flags != (is_writable((address)p) ? 3 : 11)) return INVALID;
    if (find((address)p, &known)) return 712;
    add((struct range){(address)p, n, 0, -1, p, 1, (address)p, n});
    return 0;
}
code cuMemHostUnregister(void *p) {
    struct range taken;
    return take((address)p, 0, &taken) ? 0 : 713;
}
code cuMemHostGetDevicePointer_v2(address *d, void *p, unsigned flags) {
    struct range known;
    if (flags || !find((address)p, &known)) return INVALID;
    *d = (address)p;
    return 0;
}
static code is_copy(address to, address from, size_t n) {
    struct range a, b;
    int knows_a = find(to, &a), knows_b = find(from, &b);
    // What is known is not left; at least one side is the device's.
    if (knows_a && to - a.start + n > a.len) return INVALID;
    if (knows_b && from - b.start + n > b.len) return INVALID;
    if (!(knows_a && a.is_device) && !(knows_b && b.is_device)) return INVALID;
    return 0;
}
// Where this driver reaches an address.
static char *place_of(address at) {
    struct range known;
    return find(at, &known) && known.is_device ? known.place + (at - known.start) : (char *)at;
}
static code copy(address to, address from, size_t n) {
    code c = is_copy(to, from, n);
    if (!c) memmove(place_of(to), place_of(from), n);
    return c;
}
// For programs that wait for their copies.
code cuMemcpyHtoD_v2(address to, const void *from, size_t n) { return copy(to, (address)from, n); }
code cuMemcpyDtoH_v2(void *to, address from, size_t n) { return copy((address)to, from, n); }

// The kernel's parameter, as gpu/proto/src/kernel.ptx reads it.
struct job {
    address from, to;
    address pairs;
    uint64_t from_page, to_page, from_loop[4], to_loop[4];
    uint32_t count, pieces, extent[3], vectors;
};
static code run(const struct job *job, size_t len) {
    const uint32_t *pairs = (const uint32_t *)place_of(job->pairs);
    for (uint32_t i = 0; i < job->count; i++) {
        if (pairs[2 * i] == UINT32_MAX) continue;
        for (uint32_t piece = 0; piece < job->pieces; piece++) {
            uint64_t at[4], rest = piece;
            for (int loop = 3; loop > 0; loop--) {
                at[loop] = rest % job->extent[loop - 1];
                rest /= job->extent[loop - 1];
            }
            at[0] = rest;
            address from = job->from + pairs[2 * i] * job->from_page;
            address to = job->to + pairs[2 * i + 1] * job->to_page;
            for (int loop = 0; loop < 4; loop++) {
                from += at[loop] * job->from_loop[loop];
                to += at[loop] * job->to_loop[loop];
            }
            code c = copy(to, from, len);
            if (c) return c;
        }
    }
    return 0;
}

// Stripes that are copied and summed: the remainder of each modulo the polynomial of CRC32C, bit by bit.
struct sums { address list, sums; uint64_t stripes; };
static code run_sums(const struct sums *job) {
    for (uint64_t i = 0; i < job->stripes; i++) {
        struct { address from, to; uint64_t vectors; } stripe;
        memcpy(&stripe, place_of(job->list + i * sizeof stripe), sizeof stripe);
        const unsigned char *bytes = (const unsigned char *)place_of(stripe.from);
        uint32_t rest = 0;
        for (uint64_t at = 0; at < stripe.vectors * 16; at++) {
            rest ^= bytes[at];
            for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78 : 0);
        }
        code c = copy(stripe.to, stripe.from, stripe.vectors * 16);
        if (c) return c;
        memcpy(place_of(job->sums + 4 * i), &rest, 4);
    }
    return 0;
}

// Streams: what is queued, and a thread that does it.
struct event { uint64_t recorded, come; int users; };
enum kind { COPY, KERNEL, SUMS, RECORD, WAIT, CALL, END };
struct work {
    enum kind kind;
    uint64_t due, number;
    address to, from;
    size_t len;
    struct job job;
    struct sums sums;
    struct event *event;
    void (*function)(void *);
    void *argument;
    struct work *next;
};
struct stream {
    struct work *first, *last;
    int is_idle;
    struct stream *next;
};
static struct stream *streams;
// For what streams of somebody else do, the default one among them.
static struct stream *others;
static pthread_mutex_t queues = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void let_go(struct event *e) {
    if (!--e->users) free(e);
}
static void must(code c, const char *what) {
    if (!c) return;
    fprintf(stderr, "stub driver: %s of memory that is gone\n", what);
    abort();
}
// Does it, without the lock of the queues but for what events are.
static void perform(struct work *work) {
    if (work->kind == WAIT) {
        pthread_mutex_lock(&queues);
        while (work->event->come < work->number && !dead) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1;
            pthread_cond_timedwait(&changed, &queues, &until);
        }
        pthread_mutex_unlock(&queues);
    }
    pthread_mutex_lock(&doing);
    if (!dead) {
        if (work->kind == COPY) must(copy(work->to, work->from, work->len), "a copy");
        if (work->kind == KERNEL) must(run(&work->job, work->len), "a kernel");
        if (work->kind == SUMS) must(run_sums(&work->sums), "a sum");
        if (work->kind == CALL) work->function(work->argument);
    }
    pthread_mutex_unlock(&doing);
    pthread_mutex_lock(&queues);
    if (work->kind == RECORD && work->event->come < work->number) work->event->come = work->number;
    if (work->event) let_go(work->event);
    pthread_mutex_unlock(&queues);
}
static void *work_off(void *p) {
    struct stream *s = p;
    for (int is_over = 0; !is_over;) {
        pthread_mutex_lock(&queues);
        while (!s->first) {
            s->is_idle = 1;
            pthread_cond_broadcast(&changed);
            pthread_cond_wait(&changed, &queues);
        }
        struct work *work = s->first;
        s->first = work->next;
        pthread_mutex_unlock(&queues);
        uint64_t now = now_us();
        if (now < work->due) usleep(work->due - now);
        is_over = work->kind == END;
        perform(work);
        pthread_mutex_lock(&queues);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&queues);
        free(work);
    }
    free(s);
    return NULL;
}
// With the lock of the queues.
static struct stream *new_stream(void) {
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work_off, s)) abort();
    pthread_detach(thread);
    return s;
}
static struct stream *of_handle(void *handle) {
    for (struct stream *s = streams; s; s = s->next)
        if (s == handle) return s;
    if (!others) others = new_stream();
    return others;
}
static code queue(void *handle, struct work what) {
    if (dead) return dead;
    if (!handle) return INVALID;
    struct work *work = malloc(sizeof *work);
    *work = what;
    work->due = now_us() + DELAY_US;
    work->next = NULL;
    pthread_mutex_lock(&queues);
    struct stream *s = of_handle(handle);
    if (work->event) {
        work->event->users++;
        if (work->kind == RECORD) work->event->recorded++;
        work->number = work->event->recorded;
    }
    if (s->first) s->last->next = work;
    else s->first = work;
    s->last = work;
    s->is_idle = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&queues);
    return 0;
}

code cuStreamCreate(void **s, unsigned flags) {
    pthread_mutex_lock(&queues);
    struct stream *made = new_stream();
    made->next = streams;
    *s = streams = made;
    pthread_mutex_unlock(&queues);
    return flags == 1 ? 0 : INVALID;
}
#ifndef WITHOUT_BATCH
code cuCtxGetStreamPriorityRange(int *last, int *first) {
    *last = 0;
    *first = -5;
    return 0;
}
code cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
    return priority == -5 ? cuStreamCreate(s, flags) : INVALID;
}
#endif
code cuStreamDestroy_v2(void *handle) {
    pthread_mutex_lock(&queues);
    struct stream **s = &streams;
    while (*s && *s != handle) s = &(*s)->next;
    struct stream *ended = *s;
    if (ended) *s = ended->next;
    if (ended) {
        struct work *end = calloc(1, sizeof *end);
        end->kind = END;
        if (ended->first) ended->last->next = end;
        else ended->first = end;
        ended->last = end;
        ended->is_idle = 0;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&queues);
    return ended ? 0 : INVALID;
}
code cuStreamSynchronize(void *handle) {
    if (!handle) return INVALID;
    pthread_mutex_lock(&queues);
    struct stream *s = of_handle(handle);
    while (!s->is_idle) pthread_cond_wait(&changed, &queues);
    pthread_mutex_unlock(&queues);
    return dead;
}
code cuEventCreate(struct event **e, unsigned flags) {
    *e = calloc(1, sizeof **e);
    (*e)->users = 1;
    return flags == 2 ? 0 : INVALID;
}
code cuEventRecord(struct event *e, void *s) {
    return queue(s, (struct work){.kind = RECORD, .event = e});
}
code cuEventQuery(struct event *e) {
    pthread_mutex_lock(&queues);
    code c = dead ? dead : e->come < e->recorded ? NOT_READY : 0;
    pthread_mutex_unlock(&queues);
    return c;
}
code cuEventDestroy_v2(struct event *e) {
    pthread_mutex_lock(&queues);
    let_go(e);
    pthread_mutex_unlock(&queues);
    return 0;
}
code cuStreamWaitEvent(void *s, struct event *e, unsigned flags) {
    return flags ? INVALID : queue(s, (struct work){.kind = WAIT, .event = e});
}
code cuLaunchHostFunc(void *s, void (*function)(void *), void *argument) {
    return queue(s, (struct work){.kind = CALL, .function = function, .argument = argument});
}
code cuMemcpyAsync(address to, address from, size_t n, void *s) {
    if (dead) return dead;
    code c = is_copy(to, from, n);
    return c ? c : queue(s, (struct work){.kind = COPY, .to = to, .from = from, .len = n});
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
        code c = cuMemcpyAsync(to[i], from[i], n[i], s);
        if (c) return c;
    }
    return 0;
}
#endif

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
code cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *s, void **parameters, void **extra) {
    if (!s || !gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra)
        return INVALID;
    struct work work = {.kind = KERNEL};
    if (strstr(f, "lunette_copy_summed")) {
        work.kind = SUMS;
        memcpy(&work.sums, parameters[0], sizeof work.sums);
        /* Without stripes it is a look at how long kernels wait. */
        return gx <= work.sums.stripes || !work.sums.stripes ? queue(s, work) : INVALID;
    }
    memcpy(&work.job, parameters[0], sizeof work.job);
    const char *name = strstr(f, "lunette_copy_pages_");
    work.len = (size_t)work.job.vectors * atoi(name + strlen("lunette_copy_pages_"));
    return queue(s, work);
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
// With SPLIT each page is told to be an allocation by itself.
static void split(struct range *known, address at) {
#ifdef SPLIT
    if (!known->len) return;
    address end = known->start + known->len, page = at & ~(address)4095;
    known->start = page;
    known->len = end - page < 4096 ? end - page : 4096;
#endif
}
// What is not known is nothing at all.
code cuPointerGetAttributes(unsigned count, unsigned *which, void **values, address at) {
    struct range known = {0};
    if (!is_started) return NOT_STARTED;
    find(at, &known);
    split(&known, at);
    for (unsigned i = 0; i < count; i++)
        switch (which[i]) {
        case 2: *(unsigned *)values[i] = !known.len ? 0 : known.is_device ? 2 : 1; break;
        case 8: *(unsigned *)values[i] = 0; break;
        case 9: *(int *)values[i] = known.len ? 0 : -2; break;
        case 11: *(address *)values[i] = known.reserved; break;
        case 12: *(size_t *)values[i] = known.reserved_len; break;
#ifndef WITHOUT_MAPPINGS
        case 16: *(unsigned *)values[i] = known.has_access ? 3 : 0; break;
        case 18: *(size_t *)values[i] = known.len; break;
        case 19: *(address *)values[i] = known.start; break;
#endif
        default: return INVALID;
        }
    return 0;
}
code cuMemGetAddressRange_v2(address *base, size_t *len, address at) {
    struct range known;
    if (!find(at, &known) || !known.has_access) return NOT_FOUND;
    split(&known, at);
    *base = known.start;
    *len = known.len;
    return 0;
}

#ifndef WITHOUT_SHARING
code cuPointerSetAttribute(const void *value, unsigned which, address at) {
    struct range known;
    return which == 6 && *(const unsigned *)value == 1 && find(at, &known) ? 0 : INVALID;
}
// A handle names a descriptor of the process whose allocation it is, as long as that is there.
struct handle {
    struct { uint64_t magic, len; int pid, fd; } its;
    char rest[40];
};
#define HANDLE_MAGIC 0x6c6e656c646e6168
code cuIpcGetMemHandle(struct handle *h, address at) {
    struct range known;
    memset(h, 0, sizeof *h);
    if (!find(at, &known) || !known.is_device) return INVALID;
    h->its.magic = HANDLE_MAGIC;
    h->its.len = known.len;
    h->its.pid = getpid();
    h->its.fd = known.fd;
    return 0;
}
code cuIpcOpenMemHandle_v2(address *at, struct handle h, unsigned flags) {
    char path[64];
    struct stat found;
    if (flags != 1 || h.its.magic != HANDLE_MAGIC) return 400;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.its.pid, h.its.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 400;
    if (fstat(fd, &found) || (uint64_t)found.st_size < h.its.len) {
        close(fd);
        return 400;
    }
    __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return map_device(0, h.its.len, fd, at);
}
code cuIpcCloseMemHandle(address at) { return cuMemFree_v2(at); }
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
#define RESERVED_MAX 64
static struct { address start; size_t len; } reserved[RESERVED_MAX];
code cuMemAddressReserve(address *at, size_t n, size_t align, address wish, uint64_t flags) {
    if (align || wish || flags) return INVALID;
    void *place = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return 2;
    *at = (address)place;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < RESERVED_MAX && reserved[i].len) i++;
    if (i < RESERVED_MAX) {
        reserved[i].start = *at;
        reserved[i].len = n;
    }
    pthread_mutex_unlock(&lock);
    return i < RESERVED_MAX ? 0 : 2;
}
code cuMemAddressFree(address at, size_t n) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RESERVED_MAX; i++)
        if (reserved[i].start == at) reserved[i].len = 0;
    pthread_mutex_unlock(&lock);
    return munmap((void *)at, n) ? INVALID : 0;
}
// Nobody has access to what has just been mapped.
code cuMemMap(address at, size_t n, size_t offset, uint64_t memory, uint64_t flags) {
    if (offset || flags || lseek(memory, 0, SEEK_END) < (off_t)n) return INVALID;
    address mapped;
    int fd = dup(memory);
    code c = fd < 0 ? 2 : map_device(at, n, fd, &mapped);
    if (c) return c;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].len && ranges[i].start == at && ranges[i].is_device)
            for (int r = 0; r < RESERVED_MAX; r++)
                if (reserved[r].len && at - reserved[r].start < reserved[r].len) {
                    ranges[i].has_access = 0;
                    ranges[i].reserved = reserved[r].start;
                    ranges[i].reserved_len = reserved[r].len;
                }
    pthread_mutex_unlock(&lock);
    return 0;
}
code cuMemUnmap(address at, size_t n) {
    struct range taken;
    if (!take(at, 1, &taken) || taken.len != n) return INVALID;
    munmap(taken.place, n);
    close(taken.fd);
    void *place = mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return place == MAP_FAILED ? INVALID : 0;
}
struct access { int location, id, flags; };
code cuMemSetAccess(address at, size_t n, const struct access *a, size_t count) {
    if (count != 1 || a->location != 1 || a->id || a->flags != 3) return INVALID;
    code c = INVALID;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].len == n && ranges[i].start == at && ranges[i].is_device) {
            ranges[i].has_access = 1;
            c = 0;
        }
    pthread_mutex_unlock(&lock);
    return c;
}
code cuMemExportToShareableHandle(int *fd, uint64_t memory, unsigned type, uint64_t flags) {
    if (type != 1 || flags) return INVALID;
    *fd = dup(memory);
    return 0;
}
code cuMemImportFromShareableHandle(uint64_t *memory, void *handle, unsigned type) {
    if (type != 1 || !handle) return INVALID;
    *memory = dup((int)(intptr_t)handle);
    return 0;
}
#endif
#endif
