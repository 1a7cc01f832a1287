// SPDX-License-Identifier: Apache-2.0
// Initialisation, devices, primary contexts, and the names of errors.
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 32 };

Context *sim_contexts[MAX_DEVICES];
static int retained[MAX_DEVICES];  // a reset does not change it
static _Thread_local Context *stack[STACK_DEPTH];
static _Thread_local int depth;

// The thread's current context, or null: also when that was destroyed.
Context *sim_current(void) {
    return depth ? sim_find(stack[depth - 1], KIND_CONTEXT) : NULL;
}

API cuInit(unsigned flags) {
    ENTER(NEEDS_NOTHING);
    if (flags) return sim_leave(INVALID_VALUE);
    if (!sim_devices) return sim_leave(NO_DEVICE);
    sim_initialized = true;
    return sim_leave(SUCCESS);
}

API cuDriverGetVersion(int *version) {
    ENTER(NEEDS_NOTHING);
    *version = 13000;
    return sim_leave(SUCCESS);
}

API cuDeviceGetCount(int *count) {
    ENTER(NEEDS_INIT);
    *count = sim_devices;
    return sim_leave(SUCCESS);
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(NEEDS_INIT);
    if (ordinal < 0 || ordinal >= sim_devices) return sim_leave(INVALID_DEVICE);
    *device = ordinal;
    return sim_leave(SUCCESS);
}

API cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    snprintf(name, length, "Software CUDA device");
    return sim_leave(SUCCESS);
}

API cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)device;
    return sim_leave(SUCCESS);
}

static size_t total_memory(void) {
    size_t limit = sim_limit[KIND_DEVICE_MEMORY], usual = (size_t)8 << 30;
    return limit < usual ? limit : usual;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    *bytes = total_memory();
    return sim_leave(SUCCESS);
}

API cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER(NEEDS_CONTEXT);
    size_t used = sim_bytes[KIND_DEVICE_MEMORY];
    *total = total_memory();
    *available = used < *total ? *total - used : 0;
    return sim_leave(SUCCESS);
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    static const struct { int attribute, value; } table[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},  // block, grid
        {8, 49152}, {10, 32}, {12, 65536}, {13, 1000000}, {14, 512}, {16, 4},  // shared, warp, clock, SMs
        {19, 1}, {31, 1}, {40, 2}, {41, 1}, {39, 1024}, {75, 8}, {76, 0},  // mapping, copies, UVA, capability
        {97, 101376}, {99, 1}, {115, 1}, {116, 1},  // opt-in shared memory, registration, pools
    };
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (attribute < 1) return sim_leave(INVALID_VALUE);
    *value = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].attribute == attribute) *value = table[i].value;
    return sim_leave(SUCCESS);
}

// Primary contexts

API cuDevicePrimaryCtxRetain(Context **context, CUdevice device) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (!sim_contexts[device]) {
        Context *made = sim_new(sizeof *made);
        made->device = device;
        sim_add(&made->object, KIND_CONTEXT, NULL);
        made->default_pool = sim_new(sizeof *made->default_pool);
        sim_add(&made->default_pool->object, KIND_POOL, made);
        made->current_pool = made->default_pool;
        made->null_stream = sim_stream_new(made, 0, 0);
        sim_contexts[device] = made;
    }
    retained[device]++;
    *context = sim_contexts[device];
    return sim_leave(SUCCESS);
}

// A release that leaves objects alive is a leak; a reset is a way to release them.
static void destroy(Context *context, bool leaks) {
    sim_destroy_context_work(context, leaks);
    sim_contexts[context->device] = NULL;
    sim_remove(&context->object);
    free(context);
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    pthread_mutex_lock(&sim_lock);
    CUresult late = sim_gate(__func__, NEEDS_INIT | DESTROYS);
    if (late == NOT_INITIALIZED) return sim_leave(late);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (!retained[device]) return sim_leave(INVALID_CONTEXT);
    if (--retained[device] == 0 && sim_contexts[device]) destroy(sim_contexts[device], true);
    return sim_leave(late);
}

API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    pthread_mutex_lock(&sim_lock);
    CUresult late = sim_gate(__func__, NEEDS_INIT | DESTROYS);
    if (late == NOT_INITIALIZED) return sim_leave(late);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    if (sim_contexts[device]) destroy(sim_contexts[device], false);
    return sim_leave(late);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER(NEEDS_INIT);
    if (device < 0 || device >= sim_devices) return sim_leave(INVALID_DEVICE);
    *flags = 0;
    *active = sim_contexts[device] != NULL;
    return sim_leave(SUCCESS);
}

API cuCtxPushCurrent_v2(Context *context) {
    ENTER(NEEDS_INIT);
    if (!sim_find(context, KIND_CONTEXT)) return sim_leave(INVALID_CONTEXT);
    if (depth == STACK_DEPTH) return sim_leave(INVALID_VALUE);
    stack[depth++] = context;
    return sim_leave(SUCCESS);
}

API cuCtxPopCurrent_v2(Context **context) {
    pthread_mutex_lock(&sim_lock);
    CUresult late = sim_gate(__func__, NEEDS_INIT | DESTROYS);
    if (late == NOT_INITIALIZED) return sim_leave(late);
    if (!depth) return sim_leave(INVALID_CONTEXT);
    depth--;
    if (context) *context = stack[depth];
    return sim_leave(late);
}

API cuCtxSetCurrent(Context *context) {
    ENTER(NEEDS_INIT);
    if (context && !sim_find(context, KIND_CONTEXT)) return sim_leave(INVALID_CONTEXT);
    if (!context) {
        depth -= depth > 0;
        return sim_leave(SUCCESS);
    }
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return sim_leave(SUCCESS);
}

API cuCtxGetCurrent(Context **context) {
    ENTER(NEEDS_INIT);
    *context = sim_current();
    return sim_leave(SUCCESS);
}

API cuCtxGetDevice(CUdevice *device) {
    ENTER(NEEDS_CONTEXT);
    *device = sim_current()->device;
    return sim_leave(SUCCESS);
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(NEEDS_CONTEXT);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return sim_leave(SUCCESS);
}

// Errors

static const struct { CUresult code; const char *name, *text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "memory range is already registered"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer is not a registered memory region"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted while capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated by an error"},
    {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would merge two captures"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not begun in this stream"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capture has a fork that was not joined"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation depends on a capture implicitly"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event of a capture"},
};

static CUresult lookup(CUresult code, const char **text, bool name) {
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *text = name ? errors[i].name : errors[i].text;
    return *text ? SUCCESS : INVALID_VALUE;
}

API cuGetErrorName(CUresult code, const char **text) { return lookup(code, text, true); }
API cuGetErrorString(CUresult code, const char **text) { return lookup(code, text, false); }
