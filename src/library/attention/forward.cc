// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>

#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"
#include "library/call/call.hpp"
#include "library/core/element.hpp"

namespace headgate {
namespace {

/// Computes max_logit per head, if requested, as the maximum over the head's rows.
/// Backends write max_logit per row. This class gives them a buffer for the rows.
class HeadMaxima {
 public:
  /// Allocates the buffer if max_logit is requested per head. Throws std::bad_alloc if it is too large.
  explicit HeadMaxima(ForwardProblem& p) : p_(p), heads_(p.outputs.max_logit) {
    const Shape& q = p.inputs.q.shape;
    rows_.shape = {q[0], q[1], q[2], 1};
    if (!heads_.present() || heads_.shape == rows_.shape) return;
    rows_.dtype = heads_.dtype;
    rows_.strides = contiguous_strides(rows_.shape);
    const std::size_t bytes = dtype_bytes(rows_.dtype);
    if (!product_fits({q[0], q[1], q[2], static_cast<std::int64_t>(bytes)})) throw std::bad_alloc();
    memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(rows_.numel()) * bytes);
    rows_.data = memory_.get();
    p.outputs.max_logit = rows_;
  }

  /// Writes the largest max_logit of each head. Requires that the backend has filled the buffer of rows.
  void write() const {
    if (memory_ == nullptr) return;
    const bool packed = p_.packed();
    for (std::int64_t n = 0; n < heads_.shape[0]; ++n) {
      const std::int64_t begin = packed ? load_index(p_.inputs.cu_seqlens_q, n) : 0;
      const std::int64_t end = packed ? load_index(p_.inputs.cu_seqlens_q, n + 1) : rows_.shape[2];
      for (std::int64_t h = 0; h < heads_.shape[1]; ++h) {
        store(heads_, n, h, 0, 0, largest_of(packed ? 0 : n, h, begin, end));
      }
    }
  }

 private:
  /// Returns the largest max_logit of rows [begin, end) of head h. Returns NaN if any of them is NaN.
  double largest_of(std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end) const {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = begin; i < end; ++i) {
      const double value = load(rows_, b, h, i, 0);
      if (value > largest || std::isnan(value)) largest = value;
    }
    return largest;
  }

  const ForwardProblem& p_;
  TensorView heads_, rows_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  ForwardProblem problem = check_forward(outputs, inputs, options);
  const ReportedCall call("attention_forward", problem, options);
  const HeadMaxima maxima(problem);
  backend_for(problem).forward(problem);
  maxima.write();
  call.end();
}

}  // namespace headgate
