/* A stand-in for libcuda.so.1: one device that computes nothing, as far as bench/gpu_check.py calls the driver itself.
 *
 * PROBED(name) stands for each function that would be probed; the test defines the list, less those that are written out here.
 * STAND_IN_CUDA_UUID names the device, 32 hexadecimal digits; STAND_IN_CUDA_HIDES a function of which cuGetProcAddress gives code
 * that is not exported, which is what would blind a probe; STAND_IN_CUDA_RENEWS one of which it gives code that is exported under a
 * name that nobody knew. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
enum { PER_THREAD_STREAM = 2 };
typedef unsigned long long Pointer;

#define PROBED(name) int name(void) { return SUCCESS; }
#include "probed.inc"
PROBED(cuOfTheFuture)

static int hidden(void) { return SUCCESS; }

int cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }
int cuDriverGetVersion(int *version) { *version = 12080; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
int cuCtxSetCurrent(void *context) { return context != NULL ? SUCCESS : INVALID_VALUE; }
int cuCtxSynchronize(void) { return SUCCESS; }

int cuModuleLoadData(void **module, const char *image)
{
    *module = (void *)image;
    return strstr(image, ".version") != NULL ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = strstr(module, name);
    return *function != NULL ? SUCCESS : NOT_FOUND;
}


int cuDeviceGetName(char *name, int length, int device)
{
    return snprintf(name, (size_t)length, "Stand-in %d", device) < length ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    const char *digits = getenv("STAND_IN_CUDA_UUID");
    for (int place = 0; place < 16; place++)
        if (device != 0 || digits == NULL || sscanf(digits + 2 * place, "%2hhx", &uuid[place]) != 1)
            return INVALID_VALUE;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name != NULL ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = device == 0 ? (void *)0x1000 : NULL;
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemAlloc_v2(Pointer *pointer, size_t size)
{
    *pointer = (Pointer)(uintptr_t)malloc(size);
    return *pointer != 0 ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    *pointer = malloc(size);
    return *pointer != NULL && flags == 0 ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(Pointer pointer) { free((void *)(uintptr_t)pointer); return SUCCESS; }

/* A byte at each end tells that the pointers are right and the size is too, without the time that all of it would take. */
static int touch(void *target, const void *source, size_t size)
{
    memcpy(target, source, 1);
    memcpy((char *)target + size - 1, (const char *)source + size - 1, 1);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(Pointer target, const void *source, size_t size) { return touch((void *)(uintptr_t)target, source, size); }
int cuMemcpyDtoH_v2(void *target, Pointer source, size_t size) { return touch(target, (void *)(uintptr_t)source, size); }

int cuMemsetD8_v2(Pointer target, unsigned char value, size_t size)
{
    char *bytes = (char *)(uintptr_t)target;
    bytes[0] = bytes[size - 1] = (char)value;
    return SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **address, int cuda, uint64_t flags, int *status)
{
    static const char *const suffixes[] = {"_v2_ptsz", "_ptsz", "_v2", ""};
    const char *hides = getenv("STAND_IN_CUDA_HIDES");
    const char *renews = getenv("STAND_IN_CUDA_RENEWS");
    char name[128];
    *address = NULL;
    if (renews != NULL && strcmp(renews, symbol) == 0 && cuda >= 12000)
        *address = (void *)(uintptr_t)cuOfTheFuture;
    if (hides != NULL && strcmp(hides, symbol) == 0 && cuda >= 12000)
        *address = (void *)(uintptr_t)hidden;
    for (int place = flags & PER_THREAD_STREAM ? 0 : 2; place < 4 && *address == NULL; place++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[place]);
        *address = dlsym(RTLD_DEFAULT, name);
        if (*address == NULL)
            *address = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name);
    }
    *status = *address != NULL ? 0 : 1;
    return *address != NULL ? SUCCESS : NOT_FOUND;
}
