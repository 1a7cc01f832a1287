// SPDX-License-Identifier: Apache-2.0
// Streams, each a thread that runs its operations in order, and events.
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };

static Stream *all;

// Operations

Op *sim_op(OpKind kind) {
    Op *op = sim_new(sizeof *op);
    op->kind = kind;
    return op;
}

void sim_record_drop(Record *record) {
    if (record && --record->references == 0) free(record);
}

void sim_op_free(Op *op) {
    if (op->kind == OP_COPY) free(op->copy.staging);
    if (op->kind == OP_KERNEL) free(op->kernel.blob);
    if (op->kind == OP_RECORD || op->kind == OP_WAIT) sim_record_drop(op->record);
    if (op->kind == OP_GRAPH) sim_exec_drop(op->exec);
    free(op);
}

static void append(Stream *stream, Op *op) {
    *(stream->tail ? &stream->tail->next : &stream->head) = op;
    stream->tail = op;
    stream->submitted++;
    pthread_cond_broadcast(&sim_changed);
}

static void append_record(Stream *stream, Record *record) {
    Op *op = sim_op(OP_RECORD);
    record->references++;
    op->record = record;
    append(stream, op);
}

static void append_wait(Stream *stream, Record *record) {
    Op *op = sim_op(OP_WAIT);
    record->references++;
    op->record = record;
    append(stream, op);
}

static void follow(Stream *stream, Stream *before) {
    if (before == stream || before->completed == before->submitted) return;
    Record *record = sim_new(sizeof *record);
    record->references = 1;
    append_record(before, record);
    append_wait(stream, record);
    sim_record_drop(record);
}

// The context's own stream waits for all blocking streams, and they for it.
static void order_legacy(Stream *stream) {
    Stream *null_stream = stream->object.context->null_stream;
    if (stream == null_stream) {
        for (Stream *other = all; other; other = other->following)
            if (other->object.context == stream->object.context && !(other->flags & NON_BLOCKING))
                follow(stream, other);
    } else if (!(stream->flags & NON_BLOCKING)) {
        follow(stream, null_stream);
    }
}

// Give an operation to a stream, or to the graph that it captures. With `wait`, return when it has run.
CUresult sim_submit(Stream *stream, Op *op, bool wait) {
    if (stream->capture) return sim_capture(stream, op);
    order_legacy(stream);
    append(stream, op);
    if (!wait) return SUCCESS;
    Context *context = stream->object.context;
    uint64_t ticket = stream->submitted;
    while (stream->completed < ticket) pthread_cond_wait(&sim_changed, &sim_lock);
    return sim_fault(context);
}

// A stream that was drawn into a capture, or null.
Stream *sim_capture_member(const Stream *origin, const Graph *graph) {
    for (Stream *stream = all; stream; stream = stream->following)
        if (stream != origin && stream->capture == graph) return stream;
    return NULL;
}

// The fault of a context that may have gone while the caller waited.
CUresult sim_fault(const Context *context) {
    return sim_find(context, KIND_CONTEXT) ? context->fault : INVALID_CONTEXT;
}

// The thread of a stream

static void callback(Stream *stream, Op *op, CUresult status) {
    pthread_mutex_unlock(&sim_lock);
    op->host.callback(stream, status, op->host.data);
    pthread_mutex_lock(&sim_lock);
}

static void run(Stream *stream, Op *op) {
    Context *context = stream->object.context;
    switch (op->kind) {
        case OP_WAIT:
            while (!op->record->done) pthread_cond_wait(&sim_changed, &sim_lock);
            return;
        case OP_RECORD:
            op->record->time = sim_now();
            op->record->done = true;
            return;
        case OP_FREE: sim_memory_release(op->memory); return;
        case OP_CALLBACK: callback(stream, op, context->fault); return;
        default: break;
    }
    if (context->fault) return;
    pthread_mutex_unlock(&sim_lock);
    CUresult code = sim_execute(stream, op);
    pthread_mutex_lock(&sim_lock);
    if (code != SUCCESS && !context->fault) context->fault = code;
}

static void *serve(void *argument) {
    Stream *stream = argument;
    pthread_mutex_lock(&sim_lock);
    for (;;) {
        while (!stream->head && !stream->closing) pthread_cond_wait(&sim_changed, &sim_lock);
        Op *op = stream->head;
        if (!op) break;
        stream->head = op->next;
        if (!stream->head) stream->tail = NULL;
        run(stream, op);
        sim_op_free(op);
        stream->completed++;
        pthread_cond_broadcast(&sim_changed);
    }
    for (Stream **link = &all; *link; link = &(*link)->following)
        if (*link == stream) {
            *link = stream->following;
            break;
        }
    free(stream);
    pthread_cond_broadcast(&sim_changed);
    pthread_mutex_unlock(&sim_lock);
    return NULL;
}

Stream *sim_stream_new(Context *context, unsigned flags, int priority) {
    static unsigned seed = 1;
    Stream *stream = sim_new(sizeof *stream);
    stream->flags = flags;
    stream->priority = priority;
    stream->random = seed++;
    pthread_t thread;
    sim_add(&stream->object, KIND_STREAM, context);
    if (pthread_create(&thread, NULL, serve, stream) != 0) {
        sim_remove(&stream->object);
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    stream->following = all;
    all = stream;
    return stream;
}

void sim_stream_drain(Stream *stream) {
    uint64_t ticket = stream->submitted;
    while (sim_find(stream, KIND_STREAM) && stream->completed < ticket) pthread_cond_wait(&sim_changed, &sim_lock);
}

static void retire(Stream *stream) {
    sim_remove(&stream->object);
    stream->closing = true;
    pthread_cond_broadcast(&sim_changed);
}

static bool busy(Context *context) {
    for (Stream *stream = all; stream; stream = stream->following)
        if (stream->object.context == context && stream->completed < stream->submitted) return true;
    return false;
}

void sim_drain_context(Context *context) {
    while (busy(context)) pthread_cond_wait(&sim_changed, &sim_lock);
}

static bool has_streams(Context *context) {
    for (Stream *stream = all; stream; stream = stream->following)
        if (stream->object.context == context) return true;
    return false;
}

static void destroy_event(Event *event) {
    sim_record_drop(event->record);
    sim_remove(&event->object);
    free(event);
}

// End a context's work and destroy what it owns; with `leaks`, what a program left is counted as abandoned.
void sim_destroy_context_work(Context *context, bool leaks) {
    sim_drain_context(context);
    Object *object;
    while ((object = sim_any(KIND_STREAM, context))) {
        if (leaks && (Stream *)object != context->null_stream) sim_abandon(object);
        retire((Stream *)object);
    }
    context->null_stream = NULL;
    while (has_streams(context)) pthread_cond_wait(&sim_changed, &sim_lock);
    for (Kind kind = KIND_EVENT; kind < KIND_COUNT; kind++)
        while ((object = sim_any(kind, context))) {
            if (leaks) sim_abandon(object);
            if (kind == KIND_EVENT) destroy_event((Event *)object);
            else if (kind == KIND_MODULE) sim_module_destroy((Module *)object);
            else if (kind == KIND_GRAPH) sim_graph_destroy((Graph *)object);
            else if (kind == KIND_EXEC) sim_remove(object), sim_exec_drop((Exec *)object);
            else if (kind >= KIND_DEVICE_MEMORY) ((Memory *)object)->pool = NULL, sim_memory_release((Memory *)object);
            else sim_remove(object), free(object);
        }
}

// Streams

Stream *sim_stream(void *handle) {
    if ((uintptr_t)handle <= 2) return sim_current()->null_stream;
    return sim_find(handle, KIND_STREAM);
}

API cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    ENTER(NEEDS_CONTEXT);
    if (flags & ~1u) return sim_leave(INVALID_VALUE);
    *stream = sim_stream_new(sim_current(), flags, priority);
    return sim_leave(*stream ? SUCCESS : OUT_OF_MEMORY);
}

API cuStreamCreate(Stream **stream, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags & ~1u) return sim_leave(INVALID_VALUE);
    *stream = sim_stream_new(sim_current(), flags, 0);
    return sim_leave(*stream ? SUCCESS : OUT_OF_MEMORY);
}

API cuStreamDestroy_v2(Stream *stream) {
    ENTER_DESTROY(late);
    if (!sim_find(stream, KIND_STREAM) || stream == stream->object.context->null_stream)
        return sim_leave(late ? late : INVALID_HANDLE);
    if (stream->capture && stream->origin == stream) {
        Graph *unfinished;
        stream->invalidated = true;
        sim_capture_end(stream, &unfinished);
    }
    retire(stream);
    return sim_leave(late);
}

API cuStreamQuery(void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (stream->capture) {
        stream->invalidated = true;
        return sim_leave(CAPTURE_UNSUPPORTED);
    }
    return sim_leave(stream->completed < stream->submitted ? NOT_READY : SUCCESS);
}

API cuStreamSynchronize(void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (stream->capture) {
        stream->invalidated = true;
        return sim_leave(CAPTURE_UNSUPPORTED);
    }
    Context *context = stream->object.context;
    sim_stream_drain(stream);
    return sim_leave(sim_fault(context));
}

API cuCtxSynchronize(void) {
    ENTER(NEEDS_CONTEXT);
    Context *context = sim_current();
    sim_drain_context(context);
    return sim_leave(sim_fault(context));
}

API cuStreamGetPriority(void *handle, int *priority) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    *priority = stream->priority;
    return sim_leave(SUCCESS);
}

API cuStreamGetFlags(void *handle, unsigned *flags) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    *flags = stream->flags;
    return sim_leave(SUCCESS);
}

API cuStreamGetCtx(void *handle, Context **context) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    *context = stream->object.context;
    return sim_leave(SUCCESS);
}

// The function must not call the driver. It is not called once the context is broken.
API cuLaunchHostFunc(void *handle, HostFunction function, void *data) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (!function) return sim_leave(INVALID_VALUE);
    Op *op = sim_op(OP_HOST);
    op->host.function = function;
    op->host.data = data;
    return sim_leave(sim_submit(stream, op, false));
}

API cuStreamAddCallback(void *handle, StreamCallback function, void *data, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    if (!function || flags) return sim_leave(INVALID_VALUE);
    if (stream->capture) return sim_leave(CAPTURE_UNSUPPORTED);
    Op *op = sim_op(OP_CALLBACK);
    op->host.callback = function;
    op->host.data = data;
    return sim_leave(sim_submit(stream, op, false));
}

// Events

API cuEventCreate(Event **event, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags & ~7u) return sim_leave(INVALID_VALUE);
    *event = sim_new(sizeof **event);
    (*event)->flags = flags;
    sim_add(&(*event)->object, KIND_EVENT, sim_current());
    return sim_leave(SUCCESS);
}

API cuEventDestroy_v2(Event *event) {
    ENTER_DESTROY(late);
    if (!sim_find(event, KIND_EVENT)) return sim_leave(late ? late : INVALID_HANDLE);
    destroy_event(event);
    return sim_leave(late);
}

API cuEventRecord(Event *event, void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream || !sim_find(event, KIND_EVENT)) return sim_leave(INVALID_HANDLE);
    if (stream->object.context != event->object.context) return sim_leave(INVALID_HANDLE);
    sim_record_drop(event->record);
    event->record = NULL;
    event->graph = stream->capture;
    event->origin = stream->capture ? stream : NULL;
    if (stream->capture) return sim_leave(SUCCESS);
    order_legacy(stream);
    event->record = sim_new(sizeof *event->record);
    event->record->references = 1;
    append_record(stream, event->record);
    return sim_leave(SUCCESS);
}

API cuEventQuery(Event *event) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(event, KIND_EVENT)) return sim_leave(INVALID_HANDLE);
    if (event->graph) return sim_leave(CAPTURED_EVENT);
    return sim_leave(event->record && !event->record->done ? NOT_READY : SUCCESS);
}

API cuEventSynchronize(Event *event) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(event, KIND_EVENT)) return sim_leave(INVALID_HANDLE);
    if (event->graph) return sim_leave(CAPTURED_EVENT);
    Context *context = event->object.context;
    Record *record = event->record;
    if (!record) return sim_leave(SUCCESS);
    record->references++;
    while (!record->done) pthread_cond_wait(&sim_changed, &sim_lock);
    sim_record_drop(record);
    return sim_leave(sim_fault(context));
}

API cuStreamWaitEvent(void *handle, Event *event, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream || !sim_find(event, KIND_EVENT)) return sim_leave(INVALID_HANDLE);
    if (flags) return sim_leave(INVALID_VALUE);
    if (event->graph || stream->capture) return sim_leave(sim_capture_wait(stream, event));
    if (event->record && !event->record->done) append_wait(stream, event->record);
    return sim_leave(SUCCESS);
}

API cuEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(start, KIND_EVENT) || !sim_find(end, KIND_EVENT)) return sim_leave(INVALID_HANDLE);
    if ((start->flags | end->flags) & DISABLE_TIMING) return sim_leave(INVALID_HANDLE);
    if (!start->record || !end->record) return sim_leave(INVALID_HANDLE);
    if (!start->record->done || !end->record->done) return sim_leave(NOT_READY);
    *milliseconds = (float)((end->record->time - start->record->time) * 1e3);
    return sim_leave(SUCCESS);
}
