// SPDX-License-Identifier: Apache-2.0
// Graphs: the work that capturing streams record, in the order recorded, and their launches.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

// A stream's operation becomes a node. It must not be waited for, nor free memory.
CUresult sim_capture(Stream *stream, Op *op) {
    Graph *graph = stream->capture;
    bool allowed = op->kind == OP_COPY || op->kind == OP_FILL || op->kind == OP_KERNEL || op->kind == OP_HOST;
    if (!allowed) {
        stream->origin->invalidated = true;
        sim_op_free(op);
        return CAPTURE_UNSUPPORTED;
    }
    *(graph->tail ? &graph->tail->next : &graph->head) = op;
    graph->tail = op;
    graph->count++;
    stream->unjoined = stream != stream->origin;
    return SUCCESS;
}

// A wait for a captured event draws a stream into the capture, or joins a fork.
CUresult sim_capture_wait(Stream *stream, Event *event) {
    if (!event->graph) return stream->capture && event->record ? CAPTURE_UNSUPPORTED : SUCCESS;
    if (stream->capture && stream->capture != event->graph) return CAPTURE_MERGE;
    Stream *recorder = sim_find(event->origin, KIND_STREAM);
    if (!recorder || recorder->capture != event->graph) return CAPTURED_EVENT;
    recorder->unjoined = false;
    if (!stream->capture) {
        stream->capture = event->graph;
        stream->origin = recorder->origin;
        stream->unjoined = true;
    }
    return SUCCESS;
}

API cuStreamBeginCapture_v2(void *handle, int mode) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_find(handle, KIND_STREAM);  // not the context's own
    if (!stream || stream == sim_current()->null_stream) return sim_leave(CAPTURE_UNSUPPORTED);
    if (stream->capture || mode < 0 || mode > 2) return sim_leave(INVALID_VALUE);
    stream->capture = sim_new(sizeof *stream->capture);
    sim_add(&stream->capture->object, KIND_GRAPH, sim_current());
    stream->origin = stream;
    stream->capture_mode = mode;
    stream->invalidated = stream->unjoined = false;
    return sim_leave(SUCCESS);
}

// Take every stream that was drawn in out of the capture; says whether all had been joined.
static bool end_forks(Stream *origin, Graph *graph) {
    bool joined = true;
    for (;;) {
        Stream *fork = sim_capture_member(origin, graph);
        if (!fork) return joined;
        joined = joined && !fork->unjoined;
        fork->capture = NULL;
        fork->origin = NULL;
    }
}

// End the capture that began in a stream; gives the graph back if it is whole.
CUresult sim_capture_end(Stream *origin, Graph **graph) {
    Graph *captured = origin->capture;
    bool joined = end_forks(origin, captured);
    origin->capture = NULL;
    origin->origin = NULL;
    *graph = NULL;
    if (origin->invalidated || !joined) {
        sim_graph_destroy(captured);
        return joined ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
    }
    *graph = captured;
    return SUCCESS;
}

API cuStreamEndCapture(void *handle, Graph **graph) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_find(handle, KIND_STREAM);
    if (!stream || !stream->capture) return sim_leave(INVALID_VALUE);
    if (stream->origin != stream) return sim_leave(CAPTURE_UNMATCHED);
    return sim_leave(sim_capture_end(stream, graph));
}

API cuStreamIsCapturing(void *handle, int *status) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream) return sim_leave(INVALID_HANDLE);
    *status = !stream->capture ? 0 : stream->origin->invalidated ? 2 : 1;
    return sim_leave(SUCCESS);
}

// Graphs

static Op *duplicate(const Op *op) {
    Op *made = sim_op(op->kind);
    *made = *op;
    made->next = NULL;
    if (op->kind == OP_KERNEL) {
        made->kernel.blob = sim_new(op->kernel.parameters.bytes);
        memcpy(made->kernel.blob, op->kernel.blob, op->kernel.parameters.bytes);
    }
    return made;
}

static void free_ops(Op *op) {
    for (Op *next; op; op = next) {
        next = op->next;
        sim_op_free(op);
    }
}

void sim_graph_destroy(Graph *graph) {
    free_ops(graph->head);
    sim_remove(&graph->object);
    free(graph);
}

void sim_exec_drop(Exec *exec) {
    if (--exec->references) return;
    free_ops(exec->head);
    free(exec);
}

API cuGraphCreate(Graph **graph, unsigned flags) {
    ENTER(NEEDS_CONTEXT);
    if (flags) return sim_leave(INVALID_VALUE);
    *graph = sim_new(sizeof **graph);
    sim_add(&(*graph)->object, KIND_GRAPH, sim_current());
    return sim_leave(SUCCESS);
}

API cuGraphDestroy(Graph *graph) {
    ENTER_DESTROY(late);
    if (!sim_find(graph, KIND_GRAPH)) return sim_leave(late ? late : INVALID_HANDLE);
    sim_graph_destroy(graph);
    return sim_leave(late);
}

// The nodes are told by number only; their order is the order captured.
API cuGraphGetNodes(Graph *graph, void **nodes, size_t *count) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(graph, KIND_GRAPH)) return sim_leave(INVALID_HANDLE);
    size_t index = 0;
    for (Op *op = graph->head; nodes && op && index < *count; op = op->next) nodes[index++] = op;
    *count = nodes ? index : graph->count;
    return sim_leave(SUCCESS);
}

API cuGraphInstantiateWithFlags(Exec **exec, Graph *graph, unsigned long long flags) {
    ENTER(NEEDS_CONTEXT);
    (void)flags;
    if (!sim_find(graph, KIND_GRAPH)) return sim_leave(INVALID_HANDLE);
    *exec = sim_new(sizeof **exec);
    (*exec)->references = 1;
    Op **link = &(*exec)->head;
    for (Op *op = graph->head; op; op = op->next, link = &(*link)->next) *link = duplicate(op);
    sim_add(&(*exec)->object, KIND_EXEC, sim_current());
    return sim_leave(SUCCESS);
}

API cuGraphUpload(Exec *exec, void *handle) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(sim_find(exec, KIND_EXEC) && sim_stream(handle) ? SUCCESS : INVALID_HANDLE);
}

API cuGraphLaunch(Exec *exec, void *handle) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream || !sim_find(exec, KIND_EXEC)) return sim_leave(INVALID_HANDLE);
    if (stream->capture) return sim_leave(CAPTURE_UNSUPPORTED);
    Op *op = sim_op(OP_GRAPH);
    exec->references++;
    op->exec = exec;
    return sim_leave(sim_submit(stream, op, false));
}

API cuGraphExecDestroy(Exec *exec) {
    ENTER_DESTROY(late);
    if (!sim_find(exec, KIND_EXEC)) return sim_leave(late ? late : INVALID_HANDLE);
    sim_remove(&exec->object);
    sim_exec_drop(exec);
    return sim_leave(late);
}
