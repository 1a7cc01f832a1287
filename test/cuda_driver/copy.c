// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct { uintptr_t address; bool device; } End;

// A range that the device must know (device, page-locked or registered memory), or ordinary host memory.
static bool known(End end, size_t bytes, bool *is_known) {
    Memory *memory = sim_memory_at(end.address, bytes);
    *is_known = memory != NULL;
    if (end.device) return memory != NULL;
    // A host pointer must not lie in device memory, nor run out of memory that the driver knows.
    Memory *first = memory ? memory : sim_memory_at(end.address, 1);
    return !first || (memory && first->object.kind != KIND_DEVICE_MEMORY);
}

// Pageable memory is staged: a source is read before the call returns, a target is written before it returns.
static CUresult copy(End target, End source, size_t bytes, void *handle, bool asynchronous) {
    Stream *stream = sim_stream(handle);
    if (!stream) return INVALID_HANDLE;
    if (!bytes) return SUCCESS;
    bool target_known, source_known;
    if (!known(target, bytes, &target_known) || !known(source, bytes, &source_known)) return INVALID_VALUE;
    if (stream->capture && !(target_known && source_known)) return CAPTURE_UNSUPPORTED;
    Op *op = sim_op(OP_COPY);
    op->copy.target = target.address;
    op->copy.source = source.address;
    op->copy.bytes = bytes;
    op->copy.target_known = target_known;
    op->copy.source_known = source_known;
    if (asynchronous && !source_known) {
        op->copy.staging = malloc(bytes);
        if (!op->copy.staging) {
            free(op);
            return OUT_OF_MEMORY;
        }
        memcpy(op->copy.staging, (void *)source.address, bytes);
        op->copy.source = (uintptr_t)op->copy.staging;
    }
    return sim_submit(stream, op, !asynchronous || !target_known);
}

#define DEVICE(address) ((End){(uintptr_t)(address), true})
#define HOST(address) ((End){(uintptr_t)(address), false})

API cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(DEVICE(target), HOST(source), bytes, NULL, false));
}

API cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(HOST(target), DEVICE(source), bytes, NULL, false));
}

API cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(DEVICE(target), DEVICE(source), bytes, NULL, false));
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(DEVICE(target), HOST(source), bytes, stream, true));
}

API cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(HOST(target), DEVICE(source), bytes, stream, true));
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(DEVICE(target), DEVICE(source), bytes, stream, true));
}

// With unified addresses the driver finds out which end is where.
static End either(CUdeviceptr address) {
    Memory *memory = sim_memory_at(address, 1);
    return (End){address, memory && memory->object.kind == KIND_DEVICE_MEMORY};
}

API cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(either(target), either(source), bytes, NULL, false));
}

API cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(copy(either(target), either(source), bytes, stream, true));
}

static CUresult fill(CUdeviceptr target, uint32_t value, int width, size_t count, void *handle, bool wait) {
    Stream *stream = sim_stream(handle);
    if (!stream) return INVALID_HANDLE;
    if (!count) return SUCCESS;
    if (count > SIZE_MAX / width || target % width) return INVALID_VALUE;
    if (!sim_memory_at(target, count * width)) return INVALID_VALUE;
    Op *op = sim_op(OP_FILL);
    op->fill.target = target;
    op->fill.value = value;
    op->fill.width = width;
    op->fill.count = count;
    return sim_submit(stream, op, wait);
}

API cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 1, count, NULL, true));
}

API cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 2, count, NULL, true));
}

API cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 4, count, NULL, true));
}

API cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 1, count, stream, false));
}

API cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 2, count, stream, false));
}

API cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, void *stream) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(fill(target, value, 4, count, stream, false));
}
