// SPDX-License-Identifier: Apache-2.0
#include "verify/implementation.hpp"

#include <fmt/format.h>

#include "headgate/runtime.hpp"
#include "verify/linear_attention_spec.hpp"
#include "verify/spec.hpp"

namespace headgate::verify {
namespace {

/// The only vector target that supports native16 products.
constexpr const char* kNative16Target = "avx3";

}  // namespace

bool Implementation::takes(const CaseSpec& spec) const {
  if (spec.precision == Precision::native16) return products.empty() == supported_native16_products().empty();
  // With precision `exact`, bf16 instructions matter only for bf16 tensors: some of their scores are bf16 dot products
  // (library/attention/cpu/decode/dot_scores-inl.hpp).
  return products.empty() || (products == "avx512_bf16" && spec.dtype == DType::bf16);
}

bool Implementation::takes(const LinearCaseSpec& spec) const {
  if (spec.precision == Precision::exact) return is_plain_target();
  return !target.empty() && products.empty() == supported_native16_products().empty();
}

void Implementation::activate() const {
  set_backend(backend);
  set_native16_products(products);
  if (!target.empty()) set_target(target);
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> out;
  for (const std::string& backend : supported_backends()) {
    if (backend != "cpu") {
      out.push_back({backend, backend, "", ""});
      continue;
    }
    for (const std::string& target : supported_targets()) {
      out.push_back({target, backend, target, ""});
      if (target != kNative16Target) continue;
      for (const std::string& products : supported_native16_products()) {
        out.push_back({fmt::format("{} {}", target, products), backend, target, products});
      }
    }
  }
  return out;
}

ImplementationGuard::ImplementationGuard() : before_(active_target()) {}

ImplementationGuard::~ImplementationGuard() {
  set_target(before_);
  set_backend("");
  set_native16_products("");
}

}  // namespace headgate::verify
