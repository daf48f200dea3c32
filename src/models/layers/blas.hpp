// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cblas.h>

#include <cstdint>

// OpenBLAS multiplies matrices and has LAPACK. It is loaded when it is first needed: as it is loaded, and in the first
// product of each thread, it waits for ever for memory that the system does not give. Nothing calls its functions by
// their names.

namespace headgate::layers {

/// The functions of OpenBLAS that are used.
struct BlasFunctions {
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_dgemm) dgemm;
  /// LAPACK's eigenvalues of a symmetric matrix, column-major. Debian has no header for it.
  void (*dsyev)(const char* jobz, const char* uplo, const blasint* n, double* a, const blasint* lda, double* w,
                double* work, const blasint* lwork, blasint* info);
  decltype(&openblas_get_corename) get_corename;
  decltype(&openblas_get_config) get_config;
  decltype(&openblas_get_num_threads) get_num_threads;
  decltype(&openblas_set_num_threads) set_num_threads;
};

/// While it lives, `threads` threads may call OpenBLAS at a time, beside those of other such objects. OpenBLAS itself
/// has one thread in this process from the first of them on: its threads would come on top of the callers'.
class Blas {
 public:
  /// Throws Error where OpenBLAS cannot be loaded, where its memory for so many callers cannot be had, and where
  /// somebody gave it more threads than one.
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
