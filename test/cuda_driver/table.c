// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: cuda-python resolves every function by name and by the version that brought its signature.
#include "sim.h"

#include <string.h>

// Each name once per signature, oldest first. A null is a signature that is not here: without it a request
// for the newer one would get the older function.
#define HERE(name, version, symbol) {#name, version, (void *)(uintptr_t)symbol}
#define ABSENT(name, version) {#name, version, NULL}
#define FUNCTIONS(X)                                                                                              \
    X(cuCtxGetCurrent, 4000) X(cuCtxGetDevice, 2000) X(cuCtxGetStreamPriorityRange, 5050) X(cuCtxSetCurrent, 4000) \
    X(cuCtxSynchronize, 2000) X(cuDeviceGet, 2000) X(cuDeviceGetAttribute, 2000) X(cuDeviceGetCount, 2000)          \
    X(cuDeviceGetDefaultMemPool, 11020) X(cuDeviceGetMemPool, 11020) X(cuDeviceGetName, 2000)                       \
    X(cuDevicePrimaryCtxGetState, 7000) X(cuDevicePrimaryCtxRetain, 7000) X(cuDriverGetVersion, 2020)               \
    X(cuEventCreate, 2000) X(cuEventQuery, 2000) X(cuEventRecord, 2000) X(cuEventSynchronize, 2000)                 \
    X(cuFuncGetAttribute, 2020) X(cuFuncGetParamInfo, 12040) X(cuFuncSetAttribute, 9000) X(cuGetErrorName, 6000)    \
    X(cuGetErrorString, 6000) X(cuGraphCreate, 10000) X(cuGraphDestroy, 10000) X(cuGraphExecDestroy, 10000)         \
    X(cuGraphGetNodes, 10000) X(cuGraphInstantiateWithFlags, 11040) X(cuGraphLaunch, 10000)                         \
    X(cuGraphUpload, 11010) X(cuInit, 2000) X(cuLaunchHostFunc, 10000) X(cuLaunchKernel, 4000)                      \
    X(cuMemAllocAsync, 11020) X(cuMemAllocFromPoolAsync, 11020) X(cuMemFreeAsync, 11020) X(cuMemFreeHost, 2000)     \
    X(cuMemHostAlloc, 2020) X(cuMemHostGetFlags, 2030) X(cuMemHostUnregister, 4000) X(cuMemPoolCreate, 11020)       \
    X(cuMemPoolDestroy, 11020) X(cuMemPoolGetAttribute, 11020) X(cuMemPoolSetAttribute, 11020)                      \
    X(cuMemPoolTrimTo, 11020) X(cuMemcpy, 4000) X(cuMemcpyAsync, 4000) X(cuMemsetD16Async, 3020)                    \
    X(cuMemsetD32Async, 3020) X(cuMemsetD8Async, 3020) X(cuModuleGetFunction, 2000) X(cuModuleLoadData, 2000)       \
    X(cuModuleLoadDataEx, 2010) X(cuModuleUnload, 2000) X(cuPointerGetAttribute, 4000) X(cuStreamAddCallback, 5000) \
    X(cuStreamCreate, 2000) X(cuStreamCreateWithPriority, 5050) X(cuStreamEndCapture, 10000)                        \
    X(cuStreamGetCtx, 9020) X(cuStreamGetFlags, 5050) X(cuStreamGetPriority, 5050)                                  \
    X(cuStreamIsCapturing, 10000) X(cuStreamQuery, 2000) X(cuStreamSynchronize, 2000) X(cuStreamWaitEvent, 3020)
// Those whose symbol carries a version.
#define VERSIONED(X)                                                                                          \
    X(cuCtxPopCurrent, 4000, _v2) X(cuCtxPushCurrent, 4000, _v2) X(cuDeviceGetUuid, 11040, _v2)                     \
    X(cuDevicePrimaryCtxRelease, 11000, _v2) X(cuDevicePrimaryCtxReset, 11000, _v2) X(cuDeviceTotalMem, 3020, _v2)  \
    X(cuEventDestroy, 4000, _v2) X(cuEventElapsedTime, 12080, _v2) X(cuMemAlloc, 3020, _v2)                         \
    X(cuMemFree, 3020, _v2) X(cuMemGetInfo, 3020, _v2) X(cuMemHostGetDevicePointer, 3020, _v2)                      \
    X(cuMemHostRegister, 6050, _v2) X(cuMemcpyDtoD, 3020, _v2) X(cuMemcpyDtoDAsync, 3020, _v2)                      \
    X(cuMemcpyDtoH, 3020, _v2) X(cuMemcpyDtoHAsync, 3020, _v2) X(cuMemcpyHtoD, 3020, _v2)                           \
    X(cuMemcpyHtoDAsync, 3020, _v2) X(cuMemsetD16, 3020, _v2) X(cuMemsetD32, 3020, _v2) X(cuMemsetD8, 3020, _v2)    \
    X(cuStreamBeginCapture, 10010, _v2) X(cuStreamDestroy, 4000, _v2)

#define DECLARE(name, version) extern CUresult name();
#define DECLARE_VERSIONED(name, version, suffix) extern CUresult name##suffix();
FUNCTIONS(DECLARE)
VERSIONED(DECLARE_VERSIONED)

#define ENTRY(name, version) HERE(name, version, name),
#define ENTRY_VERSIONED(name, version, suffix) HERE(name, version, name##suffix),
static const struct { const char *name; int version; void *function; } table[] = {
    FUNCTIONS(ENTRY)
    VERSIONED(ENTRY_VERSIONED)
    ABSENT(cuCtxGetDevice, 13000), ABSENT(cuCtxSynchronize, 13000), ABSENT(cuLaunchHostFunc, 13020),
    ABSENT(cuStreamGetCtx, 12050),
};

API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)flags;
    if (!name || !function) return INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0 && table[i].version <= version) *function = table[i].function;
    if (strcmp(name, "cuGetProcAddress") == 0) *function = (void *)(uintptr_t)cuGetProcAddress_v2;
    if (status) *status = *function ? 0 : 1;  // found, or symbol not found
    return *function ? SUCCESS : NOT_FOUND;
}
