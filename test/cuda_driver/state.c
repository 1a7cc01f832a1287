// SPDX-License-Identifier: Apache-2.0
// The lock, the table of handles, injected faults, counts of calls, and the report of what is still alive.
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 4096, MAX_FUNCTIONS = 256, MAX_FAULTS = 16, LOG_ENTRIES = 1 << 16 };

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_changed = PTHREAD_COND_INITIALIZER;
bool sim_initialized;
size_t sim_limit[KIND_COUNT];
size_t sim_bytes[KIND_COUNT];
_Atomic int sim_delay_us;
int sim_devices = 1;

static Object *buckets[BUCKETS];
static size_t live[KIND_COUNT];
static size_t abandoned[KIND_COUNT];  // alive when their context went
static const char *const kind_names[KIND_COUNT] = {
    "context", "stream", "event", "module", "function", "graph", "graph exec", "pool",
    "device memory", "pinned memory", "registered memory",
};

static struct { char name[64]; long calls; } functions[MAX_FUNCTIONS];
static int function_count;
static int call_log[LOG_ENTRIES];
static long call_count;

typedef struct { char function[64]; long remaining; CUresult code; } Fault;
static Fault faults[MAX_FAULTS];
static int fault_count;

double sim_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

void *sim_new(size_t bytes) { return calloc(1, bytes ? bytes : 1); }

// Handles

static size_t bucket(const void *handle) {
    uint64_t bits = (uintptr_t)handle >> 4;
    return (size_t)((bits * 0x9E3779B97F4A7C15ull) >> 52);
}

void sim_add(Object *object, Kind kind, Context *context) {
    object->kind = kind;
    object->context = context;
    object->next = buckets[bucket(object)];
    buckets[bucket(object)] = object;
    live[kind]++;
}

void sim_remove(Object *object) {
    for (Object **link = &buckets[bucket(object)]; *link; link = &(*link)->next)
        if (*link == object) {
            *link = object->next;
            live[object->kind]--;
            return;
        }
}

void *sim_find(const void *handle, Kind kind) {
    for (Object *object = handle ? buckets[bucket(handle)] : NULL; object; object = object->next)
        if (object == handle && object->kind == kind) return object;
    return NULL;
}

Object *sim_any(Kind kind, const Context *context) {
    for (int i = 0; live[kind] && i < BUCKETS; i++)
        for (Object *object = buckets[i]; object; object = object->next)
            if (object->kind == kind && object->context == context) return object;
    return NULL;
}

// Count an object that was alive when its context went.
void sim_abandon(const Object *object) { abandoned[object->kind]++; }

// Calls and faults

static int function_index(const char *function) {
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, function) == 0) return i;
    if (function_count == MAX_FUNCTIONS) return 0;
    snprintf(functions[function_count].name, sizeof functions[0].name, "%s", function);
    return function_count++;
}

static CUresult injected(const char *function) {
    for (int i = 0; i < fault_count; i++) {
        bool matches = strcmp(faults[i].function, function) == 0 || strcmp(faults[i].function, "*") == 0;
        if (!matches || --faults[i].remaining > 0) continue;
        CUresult code = faults[i].code;
        faults[i] = faults[--fault_count];
        return code;
    }
    return SUCCESS;
}

// Called with the lock held at the beginning of each function of the API.
CUresult sim_gate(const char *symbol, int needs) {
    char function[64];
    snprintf(function, sizeof function, "%s", symbol);
    size_t length = strlen(function);
    if (length > 3 && function[length - 3] == '_' && function[length - 2] == 'v') function[length - 3] = 0;
    int index = function_index(function);
    functions[index].calls++;
    call_log[call_count++ % LOG_ENTRIES] = index;
    CUresult code = injected(function);
    if ((needs & (NEEDS_INIT | NEEDS_CONTEXT)) && !sim_initialized) return NOT_INITIALIZED;
    if ((needs & NEEDS_CONTEXT) && !sim_current()) return INVALID_CONTEXT;
    if (code != SUCCESS) return code;
    if (needs & NEEDS_CONTEXT) return sim_current()->fault;
    return SUCCESS;
}

CUresult sim_kernel_fault(void) {
    pthread_mutex_lock(&sim_lock);
    CUresult code = injected("kernel");
    return sim_leave(code);
}

// The control interface of the tests

// The nth call from now of `function` ("*": of any; "kernel": the nth kernel run) fails with `code`.
// A kernel's fault breaks its context, as a real one does; a call's fault is that call's alone.
API gm_sim_fail(const char *function, long nth, CUresult code) {
    pthread_mutex_lock(&sim_lock);
    if (fault_count == MAX_FAULTS || nth < 1) return sim_leave(INVALID_VALUE);
    snprintf(faults[fault_count].function, sizeof faults[0].function, "%s", function);
    faults[fault_count].remaining = nth;
    faults[fault_count++].code = code;
    return sim_leave(SUCCESS);
}

// Number of injected faults that have not struck yet.
API gm_sim_pending_faults(void) {
    pthread_mutex_lock(&sim_lock);
    return sim_leave(fault_count);
}

// Forget faults, limits, delays, counts of calls and of abandoned objects. Live objects stay.
API gm_sim_reset(void) {
    pthread_mutex_lock(&sim_lock);
    fault_count = 0;
    call_count = 0;
    sim_delay_us = 0;
    for (int i = 0; i < function_count; i++) functions[i].calls = 0;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        sim_limit[kind] = SIZE_MAX;
        abandoned[kind] = 0;
    }
    return sim_leave(SUCCESS);
}

// Let allocations of device (pinned) memory fail beyond `bytes` in total.
API gm_sim_limit_memory(size_t device_bytes, size_t pinned_bytes) {
    pthread_mutex_lock(&sim_lock);
    sim_limit[KIND_DEVICE_MEMORY] = device_bytes;
    sim_limit[KIND_PINNED_MEMORY] = pinned_bytes;
    return sim_leave(SUCCESS);
}

// The number of devices there are from now on.
API gm_sim_set_devices(int count) {
    pthread_mutex_lock(&sim_lock);
    sim_devices = count < 0 ? 0 : count > MAX_DEVICES ? MAX_DEVICES : count;
    return sim_leave(SUCCESS);
}

// Let every operation of a stream take up to `microseconds` longer, at random, to widen races.
API gm_sim_delay(int microseconds) {
    pthread_mutex_lock(&sim_lock);
    sim_delay_us = microseconds;
    return sim_leave(SUCCESS);
}

// Calls of `function` since the last reset, without the suffix of its version.
__attribute__((visibility("default"))) long gm_sim_calls(const char *function) {
    pthread_mutex_lock(&sim_lock);
    long calls = strcmp(function, "*") == 0 ? call_count : functions[function_index(function)].calls;
    pthread_mutex_unlock(&sim_lock);
    return calls;
}

// The name of the nth call since the last reset, from 0; empty when there were fewer.
__attribute__((visibility("default"))) const char *gm_sim_call_name(long nth) {
    pthread_mutex_lock(&sim_lock);
    bool known = nth >= 0 && nth < call_count && nth >= call_count - LOG_ENTRIES;
    const char *name = known ? functions[call_log[nth % LOG_ENTRIES]].name : "";
    pthread_mutex_unlock(&sim_lock);
    return name;
}

static int describe(char *text, size_t size) {
    int length = 0, found = 0;
    if (size) text[0] = 0;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        bool ours = kind == KIND_FUNCTION || kind == KIND_POOL;  // go with their module or context
        size_t count = ours ? 0 : live[kind] + abandoned[kind];
        if (kind == KIND_STREAM)  // each context's own stream is not the program's
            for (int i = 0; i < MAX_DEVICES; i++) count -= sim_contexts[i] && sim_contexts[i]->null_stream;
        if (!count) continue;
        found += (int)count;
        if ((size_t)length < size)
            length += snprintf(text + length, size - length, "%s%zu %s", length ? ", " : "", count, kind_names[kind]);
    }
    return found;
}

// Write what is alive, or was when its context went, as "2 stream, 1 device memory"; returns the number.
API gm_sim_report(char *text, size_t size) {
    pthread_mutex_lock(&sim_lock);
    return sim_leave(describe(text, size));
}

static void at_exit(void) {
    char text[512];
    if (describe(text, sizeof text)) fprintf(stderr, "software CUDA driver: still alive at exit: %s\n", text);
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

// GM_SIM_FAIL holds "function:nth:code" items, separated by commas.
static void faults_from(const char *text) {
    char function[64];
    long nth;
    int code, used;
    while (text && sscanf(text, "%63[^:]:%ld:%d%n", function, &nth, &code, &used) == 3) {
        gm_sim_fail(function, nth, code);
        text = text[used] == ',' ? text + used + 1 : NULL;
    }
}

__attribute__((constructor)) static void load(void) {
    gm_sim_reset();
    long devices = setting("GM_SIM_DEVICES", 1);
    sim_devices = devices < 0 ? 0 : devices > MAX_DEVICES ? MAX_DEVICES : (int)devices;
    sim_delay_us = (int)setting("GM_SIM_DELAY_US", 0);
    sim_limit[KIND_DEVICE_MEMORY] = (size_t)setting("GM_SIM_MEMORY", -1);
    faults_from(getenv("GM_SIM_FAIL"));
    if (setting("GM_SIM_REPORT", 0)) atexit(at_exit);
}
