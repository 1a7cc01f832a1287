// SPDX-License-Identifier: Apache-2.0
// Modules and launches. A module's kernels are the entries of its text; what runs is the native function
// that was registered under the entry's name.
#include "sim.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATIC_SHARED = 49152, MOST_SHARED = 101376, MOST_THREADS = 1024 };

static struct {
    char name[NAME_BYTES];
    NativeKernel native;
} kernels[MAX_KERNELS];
static int kernel_count;

static int kernel_index(const char *name, bool make) {
    for (int i = 0; i < kernel_count; i++)
        if (strcmp(kernels[i].name, name) == 0) return i;
    if (!make || kernel_count == MAX_KERNELS) return -1;
    snprintf(kernels[kernel_count].name, NAME_BYTES, "%s", name);
    return kernel_count++;
}

NativeKernel sim_kernel(const char *name) {
    int index = kernel_index(name, false);
    return index < 0 ? NULL : kernels[index].native;
}

// Let launches of kernels called `name` run a native function; null takes it away.
API gm_sim_register_kernel(const char *name, NativeKernel native) {
    pthread_mutex_lock(&sim_lock);
    int index = kernel_index(name, true);
    if (index >= 0) kernels[index].native = native;
    return sim_leave(index < 0 ? OUT_OF_MEMORY : SUCCESS);
}

static bool add_parameter(Parameters *parameters, size_t bytes, size_t alignment) {
    if (parameters->count == MAX_PARAMETERS || !bytes || !alignment) return false;
    size_t offset = (parameters->bytes + alignment - 1) / alignment * alignment;
    parameters->offsets[parameters->count++] = offset;
    parameters->bytes = offset + bytes;
    return true;
}

// PTX

static const char *skip(const char *text) {
    for (;;) {
        while (isspace((unsigned char)*text)) text++;
        if (text[0] != '/' || text[1] != '/') return text;
        while (*text && *text != '\n') text++;
    }
}

static const char *word(const char *text, char *out, size_t size) {
    size_t length = 0;
    text = skip(text);
    while (isalnum((unsigned char)*text) || strchr("_$%.", *text ? *text : ' ')) {
        if (length + 1 < size) out[length++] = *text;
        text++;
    }
    out[length] = 0;
    return text;
}

// One ".param .align 8 .b8 name[16]"; returns the text after it, or null.
static const char *parameter(const char *text, Parameters *parameters) {
    char token[NAME_BYTES];
    size_t bytes = 0, alignment = 0, elements = 1;
    text = word(text, token, sizeof token);
    if (strcmp(token, ".param") != 0) return NULL;
    for (text = word(text, token, sizeof token); token[0] == '.'; text = word(text, token, sizeof token)) {
        int bits;
        if (strcmp(token, ".align") == 0) {
            text = word(text, token, sizeof token);
            alignment = bytes && alignment ? alignment : strtoul(token, NULL, 10);  // .ptr's own follows the type
        } else if (sscanf(token, ".%*1[busf]%d", &bits) == 1) {
            bytes = bits / 8;
            alignment = alignment ? alignment : bytes;
        }
    }
    text = skip(text);
    if (*text == '[') {
        elements = strtoul(text + 1, NULL, 10);
        text = strchr(text, ']');
        if (!text) return NULL;
        text = skip(text + 1);
    }
    return add_parameter(parameters, bytes * elements, alignment) ? text : NULL;
}

static const char *parameters_of(const char *text, Parameters *parameters) {
    text = skip(text);
    if (*text != '(') return text;
    text = skip(text + 1);
    while (*text != ')') {
        text = parameter(text, parameters);
        if (!text) return NULL;
        if (*text == ',') text = skip(text + 1);
        else if (*text != ')') return NULL;
    }
    return text + 1;
}

static Function *add_function(Module *module, const char *name) {
    Function *function = sim_new(sizeof *function);
    snprintf(function->name, NAME_BYTES, "%s", name);
    function->module = module;
    function->sibling = module->functions;
    module->functions = function;
    sim_add(&function->object, KIND_FUNCTION, sim_current());
    return function;
}

static CUresult parse_text(Module *module, const char *text) {
    char token[NAME_BYTES];
    word(text, token, sizeof token);
    if (strcmp(token, ".version") != 0) return INVALID_PTX;
    while ((text = strstr(text, ".entry"))) {
        text = word(text + strlen(".entry"), token, sizeof token);
        if (!*token) return INVALID_PTX;
        text = parameters_of(text, &add_function(module, token)->parameters);
        if (!text) return INVALID_PTX;
    }
    return SUCCESS;
}

// A kernel's parameters are attributes of its section .nv.info.NAME, each at its ordinal.
static CUresult parse_attributes(Parameters *parameters, const unsigned char *data, size_t bytes) {
    enum { SIZED_VALUE = 4, PARAMETER_INFO = 0x17 };
    size_t sizes[MAX_PARAMETERS];
    for (size_t at = 0; at + 4 <= bytes;) {
        uint16_t size = data[0 + at] == SIZED_VALUE ? (uint16_t)(data[at + 2] | data[at + 3] << 8) : 0;
        if (data[at] == SIZED_VALUE && data[at + 1] == PARAMETER_INFO && size == 12 && at + 16 <= bytes) {
            uint16_t ordinal, offset;
            uint32_t packed;
            memcpy(&ordinal, data + at + 8, 2);
            memcpy(&offset, data + at + 10, 2);
            memcpy(&packed, data + at + 12, 4);
            if (ordinal >= MAX_PARAMETERS) return INVALID_IMAGE;
            parameters->offsets[ordinal] = offset;
            sizes[ordinal] = packed >> 18;
            if (ordinal >= parameters->count) parameters->count = ordinal + 1;
        }
        at += 4 + size;
    }
    int last = parameters->count - 1;
    if (last >= 0) parameters->bytes = parameters->offsets[last] + sizes[last];
    return SUCCESS;
}

// A cubin is an ELF file with a section .text.NAME for each kernel.
static CUresult parse_binary(Module *module, const char *image) {
    const Elf64_Ehdr *header = (const void *)image;
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr)) return INVALID_IMAGE;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
    if (header->e_shstrndx >= header->e_shnum) return INVALID_IMAGE;
    const char *names = image + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++) {
        const char *name = names + sections[i].sh_name;
        if (strncmp(name, ".text.", 6) == 0) add_function(module, name + 6);
    }
    for (int i = 0; i < header->e_shnum; i++) {
        const char *name = names + sections[i].sh_name;
        if (strncmp(name, ".nv.info.", 9) != 0) continue;
        for (Function *function = module->functions; function; function = function->sibling)
            if (strcmp(function->name, name + 9) == 0) {
                const unsigned char *data = (const void *)(image + sections[i].sh_offset);
                CUresult code = parse_attributes(&function->parameters, data, sections[i].sh_size);
                if (code != SUCCESS) return code;
            }
    }
    return SUCCESS;
}

void sim_module_destroy(Module *module) {
    for (Function *function = module->functions, *next; function; function = next) {
        next = function->sibling;
        sim_remove(&function->object);
        free(function);
    }
    sim_remove(&module->object);
    free(module);
}

static CUresult load(Module **module, const void *image, char *log, size_t log_bytes) {
    if (!image) return INVALID_VALUE;
    Module *made = sim_new(sizeof *made);
    sim_add(&made->object, KIND_MODULE, sim_current());
    bool binary = memcmp(image, ELFMAG, SELFMAG) == 0;
    CUresult code = binary ? parse_binary(made, image) : parse_text(made, image);
    if (code == SUCCESS) {
        *module = made;
        return SUCCESS;
    }
    sim_module_destroy(made);
    if (log && log_bytes) snprintf(log, log_bytes, "ptxas fatal : the text is not PTX, or an entry's parameters are not");
    return code;
}

API cuModuleLoadData(Module **module, const void *image) {
    ENTER(NEEDS_CONTEXT);
    return sim_leave(load(module, image, NULL, 0));
}

API cuModuleLoadDataEx(Module **module, const void *image, unsigned count, const int *options, void **values) {
    enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };
    ENTER(NEEDS_CONTEXT);
    char *log = NULL;
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == ERROR_LOG) log = values[i];
        if (options[i] == ERROR_LOG_BYTES) bytes = (size_t)(uintptr_t)values[i];
    }
    return sim_leave(load(module, image, log, bytes));
}

API cuModuleUnload(Module *module) {
    ENTER_DESTROY(late);
    if (!sim_find(module, KIND_MODULE)) return sim_leave(late ? late : INVALID_HANDLE);
    sim_drain_context(sim_current());
    sim_module_destroy(module);
    return sim_leave(late);
}

API cuModuleGetFunction(Function **function, Module *module, const char *name) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(module, KIND_MODULE)) return sim_leave(INVALID_HANDLE);
    if (!name) return sim_leave(INVALID_VALUE);
    for (Function *candidate = module->functions; candidate; candidate = candidate->sibling)
        if (strcmp(candidate->name, name) == 0) {
            *function = candidate;
            return sim_leave(SUCCESS);
        }
    return sim_leave(NOT_FOUND);
}

enum { MAX_THREADS_PER_BLOCK = 0, NUM_REGS = 4, MAX_DYNAMIC_SHARED = 8 };

API cuFuncGetAttribute(int *value, int attribute, Function *function) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(function, KIND_FUNCTION)) return sim_leave(INVALID_HANDLE);
    *value = 0;
    if (attribute == MAX_THREADS_PER_BLOCK) *value = MOST_THREADS;
    if (attribute == NUM_REGS) *value = 32;
    if (attribute == MAX_DYNAMIC_SHARED) *value = function->dynamic_shared ? function->dynamic_shared : STATIC_SHARED;
    return sim_leave(SUCCESS);
}

API cuFuncSetAttribute(Function *function, int attribute, int value) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(function, KIND_FUNCTION)) return sim_leave(INVALID_HANDLE);
    if (attribute == MAX_DYNAMIC_SHARED) {
        if (value < 0 || value > MOST_SHARED) return sim_leave(INVALID_VALUE);
        function->dynamic_shared = value;
    }
    return sim_leave(SUCCESS);
}

API cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *bytes) {
    ENTER(NEEDS_CONTEXT);
    if (!sim_find(function, KIND_FUNCTION)) return sim_leave(INVALID_HANDLE);
    const Parameters *all = &function->parameters;
    if (index >= (size_t)all->count) return sim_leave(INVALID_VALUE);
    bool last = index + 1 == (size_t)all->count;
    *offset = all->offsets[index];
    if (bytes) *bytes = (last ? all->bytes : all->offsets[index + 1]) - all->offsets[index];
    return sim_leave(SUCCESS);
}

// Launch

static size_t size_of(const Parameters *all, int index) {
    size_t end = index + 1 == all->count ? all->bytes : all->offsets[index + 1];
    return end - all->offsets[index];
}

// Copy the values of the parameters now: the caller may change them as soon as the launch returns.
static char *values_of(const Parameters *all, void **pointers, void **extra) {
    char *blob = sim_new(all->bytes);
    if (pointers) {
        for (int i = 0; i < all->count; i++) memcpy(blob + all->offsets[i], pointers[i], size_of(all, i));
        return blob;
    }
    const void *buffer = NULL;
    size_t bytes = 0;
    for (void **item = extra; item && *item; item += 2) {
        if ((uintptr_t)item[0] == 1) buffer = item[1];
        if ((uintptr_t)item[0] == 2) bytes = *(const size_t *)item[1];
    }
    if (bytes < all->bytes) {
        free(blob);
        return NULL;
    }
    if (all->bytes) memcpy(blob, buffer, all->bytes);
    return blob;
}

API cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *handle, void **pointers, void **extra) {
    ENTER(NEEDS_CONTEXT);
    Stream *stream = sim_stream(handle);
    if (!stream || !sim_find(function, KIND_FUNCTION)) return sim_leave(INVALID_HANDLE);
    uint64_t threads = (uint64_t)block_x * block_y * block_z, blocks = (uint64_t)grid_x * grid_y * grid_z;
    if (!threads || !blocks || threads > MOST_THREADS || grid_y > 65535 || grid_z > 65535)
        return sim_leave(INVALID_VALUE);
    int most = function->dynamic_shared ? function->dynamic_shared : STATIC_SHARED;
    if (shared > (unsigned)most || (pointers && extra)) return sim_leave(INVALID_VALUE);
    if (!sim_kernel(function->name)) return sim_leave(NO_BINARY);
    char *blob = values_of(&function->parameters, pointers, extra);
    if (!blob) return sim_leave(INVALID_VALUE);
    Op *op = sim_op(OP_KERNEL);
    snprintf(op->kernel.name, NAME_BYTES, "%s", function->name);
    op->kernel.parameters = function->parameters;
    op->kernel.blob = blob;
    op->kernel.shared = shared;
    const unsigned dimensions[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    memcpy(op->kernel.dimensions, dimensions, sizeof dimensions);
    return sim_leave(sim_submit(stream, op, false));
}
