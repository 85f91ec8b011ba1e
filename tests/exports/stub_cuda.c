// Stands in for libcuda.so.1: launches and descriptors are written to the file $STUB_LOG as text; nothing runs.
// $STUB_SIZES: bytes of each kernel parameter, as the PTX declares them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

static void hex(FILE *log, const unsigned char *bytes, int count) {
    for (int i = 0; i < count; i++) fprintf(log, "%02x", bytes[i]);
    fprintf(log, "\n");
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "stub"; return 0; }
int cuCtxGetCurrent(handle *context) { *context = (handle)1; return 0; }
int cuCtxSetCurrent(handle context) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(handle *context, int device) { *context = (handle)1; return 0; }
int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) { *(uint64_t *)data = pointer; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 232448; return 0; }
int cuModuleLoadData(handle *module, const void *image) { *module = (handle)2; return 0; }
int cuModuleGetFunction(handle *function, handle module, const char *name) { *function = (handle)3; return 0; }
int cuFuncSetAttribute(handle function, int attribute, int value) { return 0; }
int cuFuncGetAttribute(int *value, int attribute, handle function) { *value = 0; return 0; }
int cuFuncSetCacheConfig(handle function, int config) { return 0; }
int cuLaunchKernelEx(const void *, handle, void **, void **);
int cuOccupancyMaxActiveClusters(int *count, handle function, const void *config) { *count = 1; return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 0; return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }

// the "descriptor" is a digest of everything that it was made from
int cuTensorMapEncodeTiled(unsigned char *map, int type, uint32_t rank, void *address, const uint64_t *extents, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    if ((uintptr_t)map % 64) return 1;
    uint64_t said[16] = {type, rank, (uint64_t)address, interleave, swizzle, promotion, fill};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rank; i++) {
        sum = sum * 1000003 + extents[i];
        sum = sum * 1000003 + box[i];
        sum = sum * 1000003 + steps[i];
        if (i + 1 < rank) sum = sum * 1000003 + strides[i];
    }
    said[7] = sum;
    memcpy(map, said, 128);
    return 0;
}

struct attribute { int id; char pad[4]; unsigned char value[64]; };
struct config { unsigned grid[3], block[3], shared; handle stream; struct attribute *attributes; unsigned count; };

int cuLaunchKernelEx(const void *given, handle function, void **parameters, void **extra) {
    const struct config *c = given;
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    fprintf(log, "launch %p grid %u %u %u block %u %u %u shared %u stream %p\n", function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
            c->block[2], c->shared, c->stream);
    for (unsigned i = 0; i < c->count; i++) {
        fprintf(log, "attribute %d ", c->attributes[i].id);
        hex(log, c->attributes[i].value, 12);
    }
    char *sizes = strdup(getenv("STUB_SIZES")), *rest = sizes, *size;
    for (int i = 0; (size = strsep(&rest, ",")); i++) {
        fprintf(log, "parameter %d ", i);
        hex(log, parameters[i], atoi(size));
    }
    free(sizes);
    fclose(log);
    return 0;
}
