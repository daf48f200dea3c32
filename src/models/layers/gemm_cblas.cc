// SPDX-License-Identifier: Apache-2.0
// Multiplies f32 matrices with OpenBLAS.
#include <cblas.h>

#include "models/layers/gemm_parts.hpp"

namespace headgate::layers {
namespace {

CBLAS_TRANSPOSE word(Form form) { return form == Form::stored ? CblasNoTrans : CblasTrans; }

}  // namespace

bool gemm(const Product<float>& p) {
  cblas_sgemm(CblasRowMajor, word(p.a_form), word(p.b_form), static_cast<blasint>(p.M()), static_cast<blasint>(p.N()),
              static_cast<blasint>(p.K()), 1.0F, p.a.data, static_cast<blasint>(p.a.strides[0]), p.b.data,
              static_cast<blasint>(p.b.strides[0]), p.update == Update::add ? 1.0F : 0.0F, p.out.data,
              static_cast<blasint>(p.out.strides[0]));
  return true;
}

bool gemm(const Product<BFloat16, float>& /*product*/) { return false; }
bool gemm(const Product<BFloat16>& /*product*/) { return false; }
bool has_bf16_gemm() { return false; }

GemmMemory gemm_memory() { return {0, std::uint64_t{128} << 20}; }  // OpenBLAS has one buffer of this size per thread

/// Limits OpenBLAS to one thread, because threads of OpenBLAS would compete with those of multiply().
bool prepare_gemm() {
  openblas_set_num_threads(1);
  return true;
}

std::string gemm_description() { return openblas_get_config(); }

}  // namespace headgate::layers
