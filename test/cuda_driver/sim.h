// SPDX-License-Identifier: Apache-2.0
// A software CUDA driver for tests: what its files share.
//
// The library is built as libcuda.so.1 and found by cuda-python through LD_LIBRARY_PATH. It keeps the
// rules of the driver API that programs trip over: asynchronous streams (a thread each), events that order
// streams, page-locked and registered host memory with book-keeping, staged copies of pageable memory, faults
// that break the context for good. Device memory is host memory, so registered native functions serve as
// kernels. Nothing here ends the process: misuse returns an error code.
//
// One lock guards everything but the bytes that operations move, and one condition announces every change.
#ifndef GRISTMILL_SIM_H
#define GRISTMILL_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_PTX = 218, INVALID_HANDLE = 400,
    NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, PRIMARY_CONTEXT_ACTIVE = 708,
    ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907,
};

enum { MAX_DEVICES = 8, MAX_PARAMETERS = 64, MAX_KERNELS = 256, NAME_BYTES = 128 };

// Every live handle that the driver hands out is found here, so that a stale one is an error code.
typedef enum {
    KIND_CONTEXT, KIND_STREAM, KIND_EVENT, KIND_MODULE, KIND_FUNCTION, KIND_GRAPH, KIND_EXEC, KIND_POOL,
    KIND_DEVICE_MEMORY, KIND_PINNED_MEMORY, KIND_REGISTERED_MEMORY, KIND_COUNT,
} Kind;

typedef struct Object {
    struct Object *next;  // in its bucket
    Kind kind;
    struct Context *context;
} Object;

typedef struct Context {
    Object object;
    int device;
    CUresult fault;  // of the first operation that failed: every later call returns it
    struct Stream *null_stream;
    struct Pool *default_pool, *current_pool;
} Context;

typedef struct Pool {
    Object object;
    uint64_t threshold, used, used_high;
    uint64_t flags[4];
} Pool;

typedef struct Memory {
    Object object;  // kind: where it lies
    uintptr_t start;
    size_t bytes;
    unsigned flags;
    bool freeing;  // a release in stream order is under way
    bool gone;     // released while operations used it: the last of them frees it
    int users;     // operations that read or write it right now
    Pool *pool;
} Memory;

// One recording of an event. Waits hold it, so that the event may be recorded anew or destroyed.
typedef struct {
    int references;
    bool done;
    double time;  // seconds
} Record;

typedef struct Event {
    Object object;
    unsigned flags;
    Record *record;         // the latest; null when never recorded
    struct Graph *graph;    // the capture it was recorded in, if it was
    struct Stream *origin;  // the capturing stream that recorded it
} Event;

typedef struct Parameters {
    int count;
    size_t offsets[MAX_PARAMETERS];
    size_t bytes;
} Parameters;

// A native kernel: parameters point to copies made at launch. Returns 0, or the CUresult that breaks the context.
typedef int (*NativeKernel)(void *const *parameters, const unsigned dimensions[6], unsigned shared_bytes);

typedef struct Function {
    Object object;
    struct Module *module;
    struct Function *sibling;
    char name[NAME_BYTES];
    Parameters parameters;
    int dynamic_shared;
} Function;

typedef struct Module {
    Object object;
    Function *functions;
} Module;

typedef void (*HostFunction)(void *);
typedef void (*StreamCallback)(struct Stream *, CUresult, void *);

typedef enum { OP_COPY, OP_FILL, OP_KERNEL, OP_HOST, OP_CALLBACK, OP_RECORD, OP_WAIT, OP_FREE, OP_GRAPH } OpKind;

typedef struct Op {
    struct Op *next;
    OpKind kind;
    union {
        struct {
            uintptr_t target, source;
            size_t bytes;
            void *staging;                     // a copy of pageable memory, owned
            bool target_known, source_known;   // the ends that must be live memory when it runs
        } copy;
        struct { uintptr_t target; uint32_t value; int width; size_t count; } fill;
        struct {
            char name[NAME_BYTES];
            Parameters parameters;
            char *blob;  // values of the parameters, owned
            unsigned dimensions[6], shared;
        } kernel;
        struct { HostFunction function; StreamCallback callback; void *data; } host;
        Record *record;
        Memory *memory;
        struct Exec *exec;
    };
} Op;

typedef struct Stream {
    Object object;
    unsigned flags;
    int priority;
    Op *head, *tail;
    uint64_t submitted, completed;
    bool closing, running;
    struct Graph *capture;     // the graph that its operations go to, while capturing
    struct Stream *origin;     // of the capture; itself where it began
    int capture_mode;
    bool unjoined;             // captured work that the origin does not wait for yet
    bool invalidated;
    unsigned random;
    struct Stream *following;  // in the list of all streams
} Stream;

typedef struct Graph {
    Object object;
    Op *head, *tail;  // in the order captured, which is an order that satisfies every dependency
    size_t count;
} Graph;

typedef struct Exec {
    Object object;
    int references;
    Op *head;
} Exec;

// state.c: lock, handles, faults, reports
extern pthread_mutex_t sim_lock;
extern pthread_cond_t sim_changed;
extern bool sim_initialized;
extern size_t sim_limit[KIND_COUNT];  // bytes that may be allocated, by kind of memory
extern size_t sim_bytes[KIND_COUNT];
extern _Atomic int sim_delay_us;
extern int sim_devices;
enum { NEEDS_NOTHING = 0, NEEDS_INIT = 1, NEEDS_CONTEXT = 2, DESTROYS = 4 };
CUresult sim_gate(const char *function, int needs);
CUresult sim_kernel_fault(void);
void sim_abandon(const Object *object);
void sim_add(Object *object, Kind kind, Context *context);
void sim_remove(Object *object);
void *sim_find(const void *handle, Kind kind);
Object *sim_any(Kind kind, const Context *context);
double sim_now(void);
void *sim_new(size_t bytes);

// context.c
extern Context *sim_contexts[MAX_DEVICES];
Context *sim_current(void);

// memory.c
Memory *sim_memory_at(uintptr_t address, size_t bytes);
void sim_memory_release(Memory *memory);
void sim_memory_unuse(Memory *memory);

// stream.c
Stream *sim_stream(void *handle);
Stream *sim_stream_new(Context *context, unsigned flags, int priority);
Stream *sim_capture_member(const Stream *origin, const Graph *graph);
void sim_stream_drain(Stream *stream);
CUresult sim_fault(const Context *context);
CUresult sim_submit(Stream *stream, Op *op, bool wait);
Op *sim_op(OpKind kind);
void sim_op_free(Op *op);
void sim_destroy_context_work(Context *context, bool leaks);
void sim_drain_context(Context *context);
void sim_record_drop(Record *record);

// execute.c: what a stream's thread does with an operation, without the lock
CUresult sim_execute(Stream *stream, Op *op);

// graph.c
CUresult sim_capture(Stream *stream, Op *op);
CUresult sim_capture_end(Stream *origin, Graph **graph);
CUresult sim_capture_wait(Stream *stream, Event *event);
void sim_exec_drop(Exec *exec);
void sim_graph_destroy(Graph *graph);

// module.c
NativeKernel sim_kernel(const char *name);
void sim_module_destroy(Module *module);

#define API __attribute__((visibility("default"))) CUresult

// Take the lock, count the call, and return early if it must fail.
#define ENTER(needs)                                    \
    do {                                                \
        pthread_mutex_lock(&sim_lock);                  \
        CUresult gate_ = sim_gate(__func__, needs);     \
        if (gate_ != SUCCESS) return sim_leave(gate_);  \
    } while (0)

// The same for a call that destroys something: it still does so when a fault is to be reported, as the
// driver's calls do that "may also return error codes from previous, asynchronous launches".
#define ENTER_DESTROY(late)                                                \
    pthread_mutex_lock(&sim_lock);                                         \
    CUresult late = sim_gate(__func__, NEEDS_CONTEXT | DESTROYS);          \
    if (late == NOT_INITIALIZED || late == INVALID_CONTEXT) return sim_leave(late)

static inline CUresult sim_leave(CUresult code) {
    pthread_mutex_unlock(&sim_lock);
    return code;
}

#endif
