// SPDX-License-Identifier: Apache-2.0
// Replaces OpenBLAS in tests, as if OpenBLAS had been loaded on a CPU that it does not know.

#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

static char core[32] = "Prescott", config[128], buffers[128];
static int buffers_taken;

__attribute__((constructor)) static void load(void) {
  const char* chosen = getenv("OPENBLAS_CORETYPE");
  const char* threads = getenv("OPENBLAS_NUM_THREADS");
  if (chosen != NULL) snprintf(core, sizeof core, "%s", chosen);
  snprintf(config, sizeof config, "made up, kernels of %s, threads %s", core, threads == NULL ? "all" : threads);
}

EXPORT void cblas_sgemm(void);
EXPORT void cblas_dgemm(void);
EXPORT void dsyev_(void);
EXPORT void openblas_set_num_threads(int threads);
EXPORT int openblas_get_num_threads(void);
EXPORT char* openblas_get_corename(void);
EXPORT char* openblas_get_config(void);
EXPORT void* blas_memory_alloc(int place);
EXPORT void blas_memory_free(void* buffer);

void cblas_sgemm(void) { abort(); }
void cblas_dgemm(void) { abort(); }
void dsyev_(void) { abort(); }
void openblas_set_num_threads(int threads) { (void)threads; }
int openblas_get_num_threads(void) { return 1; }
char* openblas_get_corename(void) { return core; }
char* openblas_get_config(void) { return config; }
void* blas_memory_alloc(int place) {
  (void)place;
  return &buffers[buffers_taken++];
}
void blas_memory_free(void* buffer) {
  (void)buffer;
  --buffers_taken;
}
