// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.hpp"

// Linked into programs that test what multiplies matrices: before main, OpenBLAS is left one thread.

namespace {

struct OneBlasThread {
  OneBlasThread() { headgate::layers::use_one_blas_thread(); }
};
const OneBlasThread kOneBlasThread;

}  // namespace
