// SPDX-License-Identifier: Apache-2.0
// What a stream's thread does with one operation, outside the lock.
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Memory that an operation uses: it cannot go while it does. Null, with `valid` false, if it has gone.
static Memory *use(uintptr_t address, size_t bytes, bool *valid) {
    pthread_mutex_lock(&sim_lock);
    Memory *memory = sim_memory_at(address, bytes);
    if (memory) memory->users++;
    else *valid = false;
    pthread_mutex_unlock(&sim_lock);
    return memory;
}

static void unuse(Memory *memory) {
    if (!memory) return;
    pthread_mutex_lock(&sim_lock);
    sim_memory_unuse(memory);
    pthread_mutex_unlock(&sim_lock);
}

static void dawdle(Stream *stream) {
    if (sim_delay_us > 0) usleep(rand_r(&stream->random) % (sim_delay_us + 1));
}

static CUresult copy(Stream *stream, Op *op) {
    bool valid = true;
    size_t bytes = op->copy.bytes, half = bytes / 2;
    Memory *target = op->copy.target_known ? use(op->copy.target, bytes, &valid) : NULL;
    Memory *source = op->copy.source_known ? use(op->copy.source, bytes, &valid) : NULL;
    if (valid) {
        memmove((void *)op->copy.target, (void *)op->copy.source, half);
        dawdle(stream);
        memmove((char *)op->copy.target + half, (char *)op->copy.source + half, bytes - half);
    }
    unuse(target);
    unuse(source);
    return valid ? SUCCESS : ILLEGAL_ADDRESS;
}

static CUresult fill(Op *op) {
    bool valid = true;
    Memory *target = use(op->fill.target, op->fill.count * op->fill.width, &valid);
    if (!valid) return ILLEGAL_ADDRESS;
    void *start = (void *)op->fill.target;
    if (op->fill.width == 1) memset(start, (int)op->fill.value, op->fill.count);
    for (size_t i = 0; op->fill.width == 2 && i < op->fill.count; i++)
        ((uint16_t *)start)[i] = (uint16_t)op->fill.value;
    for (size_t i = 0; op->fill.width == 4 && i < op->fill.count; i++)
        ((uint32_t *)start)[i] = op->fill.value;
    unuse(target);
    return SUCCESS;
}

static CUresult kernel(Op *op) {
    CUresult fault = sim_kernel_fault();
    if (fault != SUCCESS) return fault;
    pthread_mutex_lock(&sim_lock);
    NativeKernel native = sim_kernel(op->kernel.name);
    pthread_mutex_unlock(&sim_lock);
    if (!native) return LAUNCH_FAILED;
    void *parameters[MAX_PARAMETERS];
    for (int i = 0; i < op->kernel.parameters.count; i++)
        parameters[i] = op->kernel.blob + op->kernel.parameters.offsets[i];
    return native(parameters, op->kernel.dimensions, op->kernel.shared);
}

static CUresult graph(Stream *stream, Exec *exec) {
    CUresult code = SUCCESS;
    for (Op *op = exec->head; op && code == SUCCESS; op = op->next) code = sim_execute(stream, op);
    return code;
}

CUresult sim_execute(Stream *stream, Op *op) {
    dawdle(stream);
    switch (op->kind) {
        case OP_COPY: return copy(stream, op);
        case OP_FILL: return fill(op);
        case OP_KERNEL: return kernel(op);
        case OP_HOST: op->host.function(op->host.data); return SUCCESS;
        case OP_GRAPH: return graph(stream, op->exec);
        default: return SUCCESS;  // the stream's thread does the others itself
    }
}
