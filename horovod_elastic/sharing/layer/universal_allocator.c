/* Pinned memory of the host as an allocator for PyTorch (AntMan, OSDI'20, section 3.2: universal memory).
 *
 * The CUDA driver is opened at run time: building this file needs no CUDA. PyTorch calls both functions, and a
 * null pointer is an allocation that failed. The GPU reaches the memory under the same address (CUDA driver API,
 * unified addressing). */
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef int (*host_alloc)(void **pointer, size_t bytes, unsigned int flags);
typedef int (*free_host)(void *pointer);

enum { PORTABLE = 1, DEVICE_MAPPED = 2 };

static void *driver_function(const char *name) {
  static void *driver;
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return driver ? dlsym(driver, name) : NULL;
}

void *flexo_universal_alloc(ssize_t bytes, int device, void *stream) {
  (void)device;
  (void)stream;
  host_alloc allocate = (host_alloc)driver_function("cuMemHostAlloc");
  void *pointer = NULL;
  if (!allocate || bytes <= 0 || allocate(&pointer, (size_t)bytes, PORTABLE | DEVICE_MAPPED) != 0) return NULL;
  return pointer;
}

void flexo_universal_free(void *pointer, ssize_t bytes, int device, void *stream) {
  (void)bytes;
  (void)device;
  (void)stream;
  free_host release = (free_host)driver_function("cuMemFreeHost");
  if (release && pointer) release(pointer);
}
