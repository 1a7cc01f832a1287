// SPDX-License-Identifier: Apache-2.0
// Native versions of the kernels in kernels.ptx, registered when the library is loaded.
#include "sim.h"

#include <unistd.h>

extern CUresult gm_sim_register_kernel(const char *name, NativeKernel native);

#define PARAMETER(type, index) (*(type *)parameters[index])

static unsigned threads(const unsigned d[6]) { return d[0] * d[1] * d[2] * d[3] * d[4] * d[5]; }

static int add_constant(void *const *parameters, const unsigned dimensions[6], unsigned shared) {
    (void)shared;
    int32_t *data = (int32_t *)PARAMETER(CUdeviceptr, 0);
    uint32_t count = PARAMETER(uint32_t, 1);
    for (uint32_t i = 0; i < count && i < threads(dimensions); i++) data[i] += PARAMETER(int32_t, 2);
    return 0;
}

static int saxpy(void *const *parameters, const unsigned dimensions[6], unsigned shared) {
    (void)shared;
    float *y = (float *)PARAMETER(CUdeviceptr, 0);
    const float *x = (const float *)PARAMETER(CUdeviceptr, 1);
    float a = PARAMETER(float, 2);
    uint32_t count = PARAMETER(uint32_t, 3);
    for (uint32_t i = 0; i < count && i < threads(dimensions); i++) y[i] = __builtin_fmaf(a, x[i], y[i]);
    return 0;
}

// Keep the stream busy for about a number of microseconds.
static int spin(void *const *parameters, const unsigned dimensions[6], unsigned shared) {
    (void)dimensions, (void)shared;
    usleep(PARAMETER(uint32_t, 0));
    return 0;
}

// Break the context, as a wild store does.
static int wild_store(void *const *parameters, const unsigned dimensions[6], unsigned shared) {
    (void)parameters, (void)dimensions, (void)shared;
    return ILLEGAL_ADDRESS;
}

__attribute__((constructor(200))) static void register_kernels(void) {
    gm_sim_register_kernel("add_constant", add_constant);
    gm_sim_register_kernel("saxpy", saxpy);
    gm_sim_register_kernel("spin", spin);
    gm_sim_register_kernel("wild_store", wild_store);
}
