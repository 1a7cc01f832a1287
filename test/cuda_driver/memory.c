// SPDX-License-Identifier: Apache-2.0
// Device memory and its pools, page-locked and registered host memory, and questions about pointers.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { DEVICE_ALIGNMENT = 512, PAGE = 4096, NOISE = 0xCD, NOISE_BYTES = 1 << 16 };

// All memory that the driver knows, by address.
static Memory **table;
static size_t count, room;

static size_t place(uintptr_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The memory that holds all of a range, or null.
Memory *sim_memory_at(uintptr_t address, size_t bytes) {
    size_t index = place(address);
    if (!index) return NULL;
    Memory *memory = table[index - 1];
    size_t offset = address - memory->start;
    return offset < memory->bytes && bytes <= memory->bytes - offset ? memory : NULL;
}

static bool overlaps(uintptr_t address, size_t bytes) {
    size_t index = place(address + bytes - 1);
    return index && table[index - 1]->start + table[index - 1]->bytes > address;
}

static Memory *add(uintptr_t start, size_t bytes, Kind kind) {
    if (count == room) {
        size_t larger = room ? 2 * room : 256;
        Memory **moved = realloc(table, larger * sizeof *table);
        if (!moved) return NULL;
        table = moved;
        room = larger;
    }
    Memory *memory = sim_new(sizeof *memory);
    if (!memory) return NULL;
    memory->start = start;
    memory->bytes = bytes;
    size_t index = place(start);
    memmove(table + index + 1, table + index, (count - index) * sizeof *table);
    table[index] = memory;
    count++;
    sim_add(&memory->object, kind, sim_current());
    sim_bytes[kind] += bytes;
    return memory;
}

static void give_back(Memory *memory) {
    if (memory->object.kind != KIND_REGISTERED_MEMORY) free((void *)memory->start);
    free(memory);
}

// Forget memory; its bytes go when nothing uses them.
void sim_memory_release(Memory *memory) {
    size_t index = place(memory->start) - 1;
    memmove(table + index, table + index + 1, (count - index - 1) * sizeof *table);
    count--;
    sim_bytes[memory->object.kind] -= memory->bytes;
    if (memory->pool) memory->pool->used -= memory->bytes;
    sim_remove(&memory->object);
    if (memory->users) memory->gone = true;
    else give_back(memory);
    pthread_cond_broadcast(&sim_changed);
}

void sim_memory_unuse(Memory *memory) {
    if (--memory->users == 0 && memory->gone) give_back(memory);
}

static bool fits(Kind kind, size_t bytes) {
    return sim_bytes[kind] <= sim_limit[kind] && bytes <= sim_limit[kind] - sim_bytes[kind];
}

// Wait for releases in stream order while they are what stands in the way.
static bool make_room(Kind kind, size_t bytes) {
    for (;;) {
        if (fits(kind, bytes)) return true;
        size_t releasing = 0;
        for (size_t i = 0; i < count; i++)
            if (table[i]->object.kind == kind && table[i]->freeing) releasing += table[i]->bytes;
        if (!releasing) return false;
        pthread_cond_wait(&sim_changed, &sim_lock);
    }
}

static CUresult allocate(uintptr_t *address, size_t bytes, Kind kind, Pool *pool) {
    if (!bytes) return INVALID_VALUE;
    size_t alignment = kind == KIND_DEVICE_MEMORY ? DEVICE_ALIGNMENT : PAGE;
    if (bytes > SIZE_MAX / 2 || !make_room(kind, bytes)) return OUT_OF_MEMORY;
    void *start = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    Memory *memory = start ? add((uintptr_t)start, bytes, kind) : NULL;
    if (!memory) {
        free(start);
        return OUT_OF_MEMORY;
    }
    memset(start, NOISE, bytes < NOISE_BYTES ? bytes : NOISE_BYTES);
    memory->pool = pool;
    if (pool) {
        pool->used += bytes;
        if (pool->used > pool->used_high) pool->used_high = pool->used;
    }
    *address = (uintptr_t)start;
    return SUCCESS;
}

static CUresult allocate_device(CUdeviceptr *address, size_t bytes, Pool *pool) {
    uintptr_t start = 0;
    CUresult code = allocate(&start, bytes, KIND_DEVICE_MEMORY, pool);
    if (code == SUCCESS) *address = start;
    return code;
}

// The memory that begins at an address, if it is of that kind and not being released.
static Memory *starting_at(uintptr_t address, Kind kind) {
    Memory *memory = sim_memory_at(address, 1);
    bool right = memory && memory->start == address && memory->object.kind == kind && !memory->freeing;
    return right ? memory : NULL;
}

// Device memory

API cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(allocate_device(address, bytes, NULL));
}

API cuMemFree_v2(CUdeviceptr address) {
    ENTER_DESTROY(late);
    if (!address) return sim_leave(late);
    Memory *memory = starting_at(address, KIND_DEVICE_MEMORY);
    if (!memory) return sim_leave(late ? late : INVALID_VALUE);
    memory->freeing = true;
    sim_drain_context(sim_current());
    sim_memory_release(memory);
    return sim_leave(late);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, Pool *pool, void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream || !sim_find(pool, KIND_POOL)) return sim_leave(INVALID_HANDLE);
    if (stream->capture) return sim_leave(CAPTURE_UNSUPPORTED);
    return sim_leave(allocate_device(address, bytes, pool));
}

API cuMemAllocAsync(CUdeviceptr *address, size_t bytes, void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (stream->capture) return sim_leave(CAPTURE_UNSUPPORTED);
    return sim_leave(allocate_device(address, bytes, sim_current()->current_pool));
}

API cuMemFreeAsync(CUdeviceptr address, void *handle) {
    ENTER_DESTROY(late);
    Stream *stream = sim_stream(handle);
    Memory *memory = starting_at(address, KIND_DEVICE_MEMORY);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (!memory) return sim_leave(late ? late : INVALID_VALUE);
    if (stream->capture) return sim_leave(CAPTURE_UNSUPPORTED);
    memory->freeing = true;
    Op *op = sim_op(OP_FREE);
    op->memory = memory;
    CUresult code = sim_submit(stream, op, false);
    return sim_leave(late ? late : code);
}

// Pools

API cuDeviceGetDefaultMemPool(Pool **pool, CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (!sim_contexts[device]) return sim_leave(INVALID_CONTEXT);
    *pool = sim_contexts[device]->default_pool;
    return sim_leave(SUCCESS);
}

API cuDeviceGetMemPool(Pool **pool, CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (!sim_contexts[device]) return sim_leave(INVALID_CONTEXT);
    *pool = sim_contexts[device]->current_pool;
    return sim_leave(SUCCESS);
}

API cuMemPoolCreate(Pool **pool, const void *properties) {
    ENTER(NEEDS_CONTEXT);
    if (!properties) return sim_leave(INVALID_VALUE);
    *pool = sim_new(sizeof **pool);
    sim_add(&(*pool)->object, KIND_POOL, sim_current());
    return sim_leave(SUCCESS);
}

API cuMemPoolDestroy(Pool *pool) {
    ENTER_DESTROY(late);
    if (!sim_find(pool, KIND_POOL) || pool == pool->object.context->default_pool)
        return sim_leave(INVALID_VALUE);
    if (pool->used) return sim_leave(INVALID_VALUE);  // the real one waits for its memory; none of ours should
    sim_remove(&pool->object);
    free(pool);
    return sim_leave(late);
}

enum { RELEASE_THRESHOLD = 4, RESERVED_NOW, RESERVED_HIGH, USED_NOW, USED_HIGH };

API cuMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(pool, KIND_POOL)) return sim_leave(INVALID_HANDLE);
    if (attribute == RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
    else if (attribute == USED_HIGH || attribute == RESERVED_HIGH) pool->used_high = pool->used;
    else if (attribute >= 1 && attribute < RELEASE_THRESHOLD) pool->flags[attribute] = *(int *)value;
    else return sim_leave(INVALID_VALUE);
    return sim_leave(SUCCESS);
}

API cuMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(pool, KIND_POOL)) return sim_leave(INVALID_HANDLE);
    if (attribute == RELEASE_THRESHOLD) *(uint64_t *)value = pool->threshold;
    else if (attribute == RESERVED_NOW || attribute == USED_NOW) *(uint64_t *)value = pool->used;
    else if (attribute == RESERVED_HIGH || attribute == USED_HIGH) *(uint64_t *)value = pool->used_high;
    else if (attribute >= 1 && attribute < RELEASE_THRESHOLD) *(int *)value = (int)pool->flags[attribute];
    else return sim_leave(INVALID_VALUE);
    return sim_leave(SUCCESS);
}

API cuMemPoolTrimTo(Pool *pool, size_t keep) {
    ENTER(NEEDS_CONTEXT);
    (void)keep;
    return sim_leave(sim_find(pool, KIND_POOL) ? SUCCESS : INVALID_HANDLE);
}

// Host memory

API cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags & ~7u) return sim_leave(INVALID_VALUE);
    uintptr_t start = 0;
    CUresult code = allocate(&start, bytes, KIND_PINNED_MEMORY, NULL);
    if (code == SUCCESS) {
        *address = (void *)start;
        sim_memory_at(start, 1)->flags = flags;
    }
    return sim_leave(code);
}

API cuMemFreeHost(void *address) {
    ENTER_DESTROY(late);
    if (!address) return sim_leave(late);
    Memory *memory = starting_at((uintptr_t)address, KIND_PINNED_MEMORY);
    if (!memory) return sim_leave(late ? late : INVALID_VALUE);
    memory->freeing = true;
    sim_drain_context(sim_current());
    sim_memory_release(memory);
    return sim_leave(late);
}

API cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    uintptr_t start = (uintptr_t)address;
    if (!start || !bytes || start > UINTPTR_MAX - bytes || (flags & ~15u)) return sim_leave(INVALID_VALUE);
    if (overlaps(start, bytes)) return sim_leave(ALREADY_REGISTERED);
    Memory *memory = add(start, bytes, KIND_REGISTERED_MEMORY);
    if (!memory) return sim_leave(OUT_OF_MEMORY);
    memory->flags = flags;
    return sim_leave(SUCCESS);
}

API cuMemHostUnregister(void *address) {
    ENTER_DESTROY(late);
    Memory *memory = starting_at((uintptr_t)address, KIND_REGISTERED_MEMORY);
    if (!memory) return sim_leave(late ? late : NOT_REGISTERED);
    memory->freeing = true;
    sim_drain_context(sim_current());
    sim_memory_release(memory);
    return sim_leave(late);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    Memory *memory = sim_memory_at((uintptr_t)address, 1);
    bool host = memory && memory->object.kind != KIND_DEVICE_MEMORY;
    if (flags || !host) return sim_leave(INVALID_VALUE);
    *device = (uintptr_t)address;
    return sim_leave(SUCCESS);
}

API cuMemHostGetFlags(unsigned *flags, void *address) {
    ENTER(NEEDS_CONTEXT);
    Memory *memory = starting_at((uintptr_t)address, KIND_PINNED_MEMORY);
    if (!memory) return sim_leave(INVALID_VALUE);
    *flags = memory->flags;
    return sim_leave(SUCCESS);
}

API cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    ENTER(NEEDS_CONTEXT);
    Memory *memory = sim_memory_at(address, 1);
    if (!memory) return sim_leave(INVALID_VALUE);
    bool device = memory->object.kind == KIND_DEVICE_MEMORY;
    switch (attribute) {
        case 1: *(Context **)value = memory->object.context; break;
        case 2: *(int *)value = device ? 2 : 1; break;  // memory type: device, host
        case 3: *(CUdeviceptr *)value = address; break;
        case 4:
            if (device) return sim_leave(INVALID_VALUE);
            *(uintptr_t *)value = address;
            break;
        case 8: *(unsigned *)value = 0; break;  // managed
        case 9: *(int *)value = memory->object.context->device; break;
        case 11: *(CUdeviceptr *)value = memory->start; break;
        case 12: *(size_t *)value = memory->bytes; break;
        default: return sim_leave(INVALID_VALUE);
    }
    return sim_leave(SUCCESS);
}
