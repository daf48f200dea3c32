// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cblas.h>

#include <cstdint>

// Calls OpenBLAS, which multiplies matrices and contains LAPACK. OpenBLAS is loaded at first use, and its functions are
// called through pointers, because it waits forever for memory that the system refuses: when it is loaded, and in the
// first product of each thread. Blas checks for that memory first.

namespace headgate::layers {

/// The functions of OpenBLAS that are used.
struct BlasFunctions {
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_dgemm) dgemm;
  /// Computes LAPACK's eigenvalues of a symmetric matrix, column-major. Debian has no header for it.
  void (*dsyev)(const char* jobz, const char* uplo, const blasint* n, double* a, const blasint* lda, double* w,
                double* work, const blasint* lwork, blasint* info);
  decltype(&openblas_get_corename) get_corename;
  decltype(&openblas_get_config) get_config;
  decltype(&openblas_get_num_threads) get_num_threads;
  decltype(&openblas_set_num_threads) set_num_threads;
};

/// While an object lives, `threads` threads may call OpenBLAS at a time, in addition to those of other such objects.
/// The first object sets OpenBLAS to one thread in this process, because its own threads would compete with the
/// callers'.
class Blas {
 public:
  /// Throws Error if OpenBLAS cannot be loaded, if there is no memory for so many callers, or if OpenBLAS has been set
  /// to more than one thread.
  explicit Blas(std::int64_t threads = 1);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  const BlasFunctions* operator->() const { return functions_; }

 private:
  const BlasFunctions* functions_;
  std::int64_t threads_;
};

}  // namespace headgate::layers
