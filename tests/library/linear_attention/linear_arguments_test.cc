// SPDX-License-Identifier: Apache-2.0
// Arguments of linear attention that do not fit are refused, by one line that names them, before anything is written.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"

namespace headgate {
namespace {

/// A problem that fits: B 1, T 3, Hq 2, Hk 2, Hv 4, D 2, Dv 3.
struct Call {
  std::vector<float> memory = std::vector<float>(400, 0.5F);
  std::vector<float> written = std::vector<float>(200, -7.0F);
  std::vector<std::int32_t> bounds{0, 1, 3};
  std::vector<std::int32_t> lengths{1, 3, 3, 3};
  LinearAttentionInputs in;
  LinearAttentionOutputs out;
  LinearAttentionOptions options;

  Call() {
    in.q = in.k = input({1, 2, 3, 2});
    in.v = input({1, 4, 3, 3});
    in.decay = in.beta = input({1, 4, 3, 1});
    in.state = input({1, 4, 2, 3});
    out.y = make_view(written.data(), {1, 4, 3, 3});
    out.state = make_view(written.data() + 100, {1, 4, 2, 3});
  }
  ConstTensorView input(const Shape& shape) const { return make_view(memory.data(), shape); }
  ConstTensorView vector() const { return make_view(static_cast<const std::int32_t*>(bounds.data()), {1, 1, 1, 3}); }

  /// The first M lengths, for all sequences.
  ConstTensorView snapshot_lengths(std::int64_t M) const {
    return make_view(static_cast<const std::int32_t*>(lengths.data()), {1, 1, 1, M});
  }
  TensorView snapshots(std::int64_t rows) { return make_view(written.data() + 36, {rows, 4, 2, 3}); }

  /// The message of the forward pass; "" where it accepts the call.
  std::string forward() const {
    try {
      linear_attention_forward(out, in, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

struct Wrong {
  std::function<void(Call&)> change;
  std::string message;
};

const std::vector<Wrong>& wrong_calls() {
  static const std::vector<Wrong> calls{
      {[](Call& c) { c.in.q = {}; }, "q is required but absent"},
      {[](Call& c) { c.out.y = {}; }, "y is required but absent"},
      {[](Call& c) {
         c.in.k = c.input({1, 2, 4, 2});
       },
       "q has shape (1,2,3,2) but k has shape (1,2,4,2): T is 3 and 4"},
      {[](Call& c) {
         c.in.k = c.input({1, 2, 3, 5});
       },
       "q has shape (1,2,3,2) but k has shape (1,2,3,5): D is 2 and 5"},
      {[](Call& c) {
         c.in.v = c.input({1, 4, 3, 257});
       },
       "v has shape (1,4,3,257): Dv is 257 but must be 1 to 256"},
      {[](Call& c) {
         c.in.k = c.input({1, 3, 3, 2});
       },
       "v has Hv = 4 heads, which is not a multiple of the Hk = 3 of k"},
      {[](Call& c) {
         c.in.q = c.input({1, 3, 3, 2});
       },
       "q has Hq = 3 heads and v has Hv = 4, and neither is a multiple of the other"},
      {[](Call& c) {
         c.in.decay = c.input({1, 4, 3, 3});
       },
       "decay has shape (1,4,3,3) but must be (B,Hv,T,1) = (1,4,3,1) or (B,Hv,T,D) = (1,4,3,2)"},
      {[](Call& c) {
         c.in.beta = c.input({1, 2, 3, 1});
       },
       "beta has shape (1,2,3,1) but must be (B,Hv,T,1) = (1,4,3,1) or (B,1,T,1) = (1,1,3,1)"},
      {[](Call& c) { c.options.rule = LinearRule::delta; }, "decay is given but the rule delta has none"},
      {[](Call& c) { c.options.rule = LinearRule::gated; }, "beta is given but the rule gated has none"},
      {[](Call& c) { c.options.rule = static_cast<LinearRule>(4); }, "rule is 4 but must be 0 to 3"},
      {[](Call& c) { c.options.scale = std::numeric_limits<double>::infinity(); },
       "scale is inf but must be finite in f32"},
      {[](Call& c) { c.options.scale = 1e39; }, "scale is 1e+39 but must be finite in f32"},
      {[](Call& c) { c.options.precision = Precision::native16; }, "precision is native16 but q is f32, not bf16"},
      {[](Call& c) { c.options.precision = static_cast<Precision>(2); }, "precision is 2 but must be 0 to 1"},
      {[](Call& c) { c.options.l2_norm = -1.0; },
       "l2_norm is -1 but must be at least 0 and finite: it is the eps of the norm"},
      {[](Call& c) {
         c.in.state = c.input({1, 4, 3, 2});
       },
       "state has shape (1,4,3,2) but (N,Hv,D,Dv) is (1,4,2,3)"},
      {[](Call& c) { c.in.cu_seqlens = c.vector(); }, "state has shape (1,4,2,3) but (N,Hv,D,Dv) is (2,4,2,3)"},
      {[](Call& c) {
         c.out.y = make_view(c.written.data(), {1, 2, 3, 3});
       },
       "y has shape (1,2,3,3) but (B,Ho,T,Dv) is (1,4,3,3)"},
      {[](Call& c) {
         c.in.state = make_view(static_cast<const float*>(c.written.data()) + 101, {1, 4, 2, 3});
       },
       "overlaps state in memory"},
      {[](Call& c) {
         c.out.state = make_view(c.written.data() + 30, {1, 4, 2, 3});
       },
       "overlaps y in memory"},
      {[](Call& c) { c.options.context.threads = -1; }, "threads"},
      {[](Call& c) { c.in.snapshot_lengths = c.snapshot_lengths(2); },
       "snapshot_lengths is given but snapshots is absent: give both or neither"},
      {[](Call& c) { c.out.snapshots = c.snapshots(2); },
       "snapshots is given but snapshot_lengths is absent: give both or neither"},
      {[](Call& c) {
         c.in.snapshot_lengths = c.snapshot_lengths(2);
         c.out.snapshots = c.snapshots(1);
       },
       "snapshots has shape (1,4,2,3) but (N*M,Hv,D,Dv) is (2,4,2,3)"},
      {[](Call& c) {
         c.in.snapshot_lengths = make_view(static_cast<const std::int32_t*>(c.lengths.data()), {1, 1, 2, 2});
         c.out.snapshots = c.snapshots(2);
       },
       "snapshot_lengths has shape (1,1,2,2) but must be (1,1,N,M) = (1,1,1,2) or (1,1,1,M) = (1,1,1,2)"},
      {[](Call& c) {
         c.lengths = {2, 1};
         c.in.snapshot_lengths = c.snapshot_lengths(2);
         c.out.snapshots = c.snapshots(2);
       },
       "snapshot_lengths[0,1] is 1 but must be 2 to 3: rows do not decrease, and sequence 0 has 3 tokens"},
      {[](Call& c) {
         c.lengths = {-1};
         c.in.snapshot_lengths = c.snapshot_lengths(1);
         c.out.snapshots = c.snapshots(1);
       },
       "snapshot_lengths[0,0] is -1 but must be 0 to 3: rows do not decrease, and sequence 0 has 3 tokens"},
      {[](Call& c) {
         c.in.cu_seqlens = c.vector();
         c.in.state = c.out.state = {};
         c.lengths = {1, 2};
         c.in.snapshot_lengths = c.snapshot_lengths(2);
         c.out.snapshots = c.snapshots(4);
       },
       "snapshot_lengths[0,1] is 2 but must be 1 to 1: rows do not decrease, and sequence 0 has 1 tokens"},
  };
  return calls;
}

TEST(LinearArguments, Call_Fits_IsComputed) {
  Call call;
  EXPECT_EQ(call.forward(), "");
  EXPECT_NE(call.written.front(), -7.0F);
}

TEST(LinearArguments, Call_Wrong_NamesTheArgumentAndWritesNothing) {
  for (const Wrong& wrong : wrong_calls()) {
    Call call;
    wrong.change(call);
    const std::string message = call.forward();
    EXPECT_EQ(message.rfind("linear_attention_forward: ", 0), 0U) << message << " for " << wrong.message;
    EXPECT_NE(message.find(wrong.message), std::string::npos) << message << " for " << wrong.message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(call.written, std::vector<float>(200, -7.0F)) << wrong.message;
  }
}

TEST(LinearArguments, State_InPlace_IsAccepted) {
  Call call;
  std::fill(call.written.begin(), call.written.end(), 0.25F);
  call.in.state = call.out.state;
  EXPECT_EQ(call.forward(), "");
  EXPECT_NE(call.written[100], 0.25F);
}

TEST(LinearArguments, Gradient_OfAnAbsentInput_IsRefused) {
  Call call;
  call.in.beta = {};
  LinearAttentionGradients gradients;
  gradients.dbeta = make_view(call.written.data() + 150, {1, 4, 3, 1});
  LinearAttentionIncoming incoming;
  incoming.dy = call.input({1, 4, 3, 3});
  try {
    linear_attention_backward(gradients, call.in, incoming, call.options);
    FAIL() << "dbeta without beta was accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "linear_attention_backward: dbeta is asked for but beta is absent");
  }
  EXPECT_EQ(call.written, std::vector<float>(200, -7.0F));
}

}  // namespace
}  // namespace headgate
