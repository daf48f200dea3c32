// SPDX-License-Identifier: Apache-2.0
// Checks that merged attention over ranges of the keys has the outputs and gradients of attention over all keys.

#include "headgate/merge.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "support/owned_tensor.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Expects every element to differ by at most `roundoffs` of the dtype of `storage`, times `magnitude`.
void expect_near(const ConstTensorView& actual, const std::vector<double>& expected,
                 const std::vector<double>& magnitude, DType storage, double roundoffs, const std::string& what) {
  const double u = storage == DType::f64   ? 0x1p-53
                   : storage == DType::f32 ? 0x1p-24
                   : storage == DType::f16 ? 0x1p-11
                                           : 0x1p-8;
  const Shape& n = actual.shape;
  std::size_t at = 0;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        for (std::int64_t x = 0; x < n[3]; ++x, ++at) {
          const double value = load(actual, b, h, i, x);
          if (value == expected[at]) continue;
          const double tiny = storage == DType::f16 ? 0x1p-20 : 1e-30;
          ASSERT_LE(std::abs(value - expected[at]), roundoffs * u * magnitude[at] + tiny)
              << what << "[" << b << "," << h << "," << i << "," << x << "] = " << value << ", expected "
              << expected[at];
        }
      }
    }
  }
}

std::vector<double> sum(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Runs the ranges' forward passes, without a gate and with the sinks in the first one only.
struct Parts {
  std::vector<std::int64_t> ends;
  std::vector<KeyRangeVectors> vectors;
  std::vector<AttentionInputs> inputs;
  std::vector<Owned> attn, lse;
  std::vector<MergePart> parts;

  Parts(const verify::Case& problem, const std::vector<std::int64_t>& cuts) : ends(cuts), vectors(cuts.size()) {
    const AttentionInputs& in = problem.inputs();
    const CaseSpec& spec = problem.spec();
    std::int64_t begin = 0;
    for (std::size_t n = 0; n < ends.size(); ++n) {
      AttentionInputs range = narrow_keys(in, begin, ends[n], vectors[n]);
      range.gate = {};
      if (n > 0) range.sinks = {};
      inputs.push_back(range);
      attn.emplace_back(spec.dtype, Shape{spec.B, spec.Hq(), spec.T, spec.Dv});
      lse.emplace_back(DType::f64, Shape{spec.B, spec.Hq(), spec.T, 1});
      AttentionOutputs out;
      out.y = attn.back().view;
      out.lse = lse.back().view;
      attention_forward(out, range, problem.options());
      parts.push_back({out.y, out.lse});
      begin = ends[n];
    }
  }

  std::int64_t begin(std::size_t n) const { return n == 0 ? 0 : ends[n - 1]; }
};

/// Causality, window, ALiBi, bias, mask, lengths, offsets, sinks and a gate.
CaseSpec everything(DType dtype) {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 37;
  spec.S = 90;
  spec.D = 24;
  spec.Dv = 20;
  spec.dtype = dtype;
  spec.causality = Causality::causal;
  spec.window_left = 60;
  spec.bias = {true, true, true, true};
  spec.bias_hides = true;
  spec.mask = {true, false, true, true};
  spec.key_lengths = DType::i32;
  spec.query_offsets = DType::i64;
  spec.alibi_slopes = DType::f32;
  spec.sinks = DType::f64;
  spec.gate_input = GateInput::elementwise;
  spec.lse = dtype == DType::f64 ? DType::f64 : DType::f32;
  spec.dlse = DType::f32;
  spec.attn = true;
  spec.threads = 2;
  return spec;
}

CaseSpec plain(DType dtype) {
  CaseSpec spec = everything(dtype);
  spec.bias = spec.mask = {};
  spec.bias_hides = false;
  spec.key_lengths = spec.query_offsets = DType::none;
  spec.gate_input = GateInput::headwise;
  spec.gate_fn = GateFn::silu;
  spec.seed = 3;
  return spec;
}

void check_whole(verify::Case& problem) {
  const CaseSpec& spec = problem.spec();
  const Parts parts(problem, {20, 20, 55, spec.S});
  const reference::Forward& want = problem.expected_forward();
  const AttentionOutputs out = problem.saving_outputs();
  attention_merge(out, parts.parts, problem.inputs().gate, problem.options());
  const std::string text = describe(spec);
  expect_near(out.lse, want.lse, want.magnitude.lse, spec.dtype, 32, "lse of " + text);
  expect_near(out.attn, want.attn, want.magnitude.attn, spec.dtype, 32, "attn of " + text);
  expect_near(out.y, want.y, want.magnitude.y, spec.dtype, 32, "y of " + text);
  EXPECT_FALSE(problem.spilled().has_value());

  const reference::Backward& grad = problem.expected_backward();
  const auto bound = [](const std::vector<double>& magnitude, const std::vector<double>& inherited) {
    return sum(magnitude, inherited);
  };
  const std::vector<double> dq_bound = bound(grad.magnitude.dq, grad.inherited.dq);
  const auto columns = [&](const std::vector<double>& all, std::size_t n, std::int64_t width, std::int64_t outer) {
    std::vector<double> own;
    for (std::int64_t o = 0; o < outer; ++o) {
      const double* row = all.data() + o * spec.S * width;
      own.insert(own.end(), row + parts.begin(n) * width, row + parts.ends[n] * width);
    }
    return own;
  };
  const auto expect_keys = [&](std::size_t n, const TensorView& dk, const TensorView& dv, const std::string& way) {
    const std::int64_t heads = spec.B * spec.Hkv;
    expect_near(dk, columns(grad.dk, n, spec.D, heads),
                columns(bound(grad.magnitude.dk, grad.inherited.dk), n, spec.D, heads), spec.dtype, 64,
                way + "dk of " + text);
    expect_near(dv, columns(grad.dv, n, spec.Dv, heads),
                columns(bound(grad.magnitude.dv, grad.inherited.dv), n, spec.Dv, heads), spec.dtype, 64,
                way + "dv of " + text);
  };

  // (a) Backward pass of each range, with its own y and lse.
  const std::size_t count = parts.parts.size();
  std::vector<Owned> d_attn, d_lse;
  std::vector<MergePartGradients> d_parts;
  for (std::size_t n = 0; n < count; ++n) {
    d_attn.emplace_back(parts.attn[n].view);
    d_lse.emplace_back(parts.lse[n].view);
    d_parts.push_back({d_attn.back().view, d_lse.back().view});
  }
  const Owned dgate(problem.inputs().gate);
  attention_merge_backward(d_parts, dgate.view, parts.parts, problem.inputs().gate, problem.incoming(),
                           problem.options());
  expect_near(dgate.view, grad.dgate, bound(grad.magnitude.dgate, grad.inherited.dgate), spec.dtype, 64,
              "(a) dgate of " + text);
  std::vector<double> dq_sum(grad.dq.size());
  const auto add_dq = [&](const Owned& dq) {
    for (std::size_t i = 0; i < dq_sum.size(); ++i)
      dq_sum[i] += load_element(dq.view.data, dq.view.dtype, static_cast<std::int64_t>(i));
  };
  const auto expect_dq = [&](const std::string& way) {
    const Owned total(DType::f64, problem.inputs().q.shape);
    std::memcpy(total.view.data, dq_sum.data(), dq_sum.size() * sizeof(double));
    expect_near(total.view, grad.dq, dq_bound, spec.dtype, 64, way + "dq of " + text);
  };
  for (std::size_t n = 0; n < count; ++n) {
    const AttentionInputs& in = parts.inputs[n];
    const Owned dq(in.q), dk(in.k), dv(in.v), dsinks(in.sinks);
    AttentionGradients to;
    to.dq = dq.view;
    to.dk = dk.view;
    to.dv = dv.view;
    if (n == 0) to.dsinks = dsinks.view;
    attention_backward(to, in, {parts.parts[n].attn, parts.parts[n].lse, {}}, {d_parts[n].attn, d_parts[n].lse},
                       problem.options());
    expect_keys(n, dk.view, dv.view, "(a) ");
    add_dq(dq);
    if (n == 0) {
      expect_near(dsinks.view, grad.dsinks, bound(grad.magnitude.dsinks, grad.inherited.dsinks), spec.dtype, 64,
                  "(a) dsinks of " + text);
    }
  }
  expect_dq("(a) ");

  // (b) Backward pass of each range with y, lse and the gate of the whole.
  std::fill(dq_sum.begin(), dq_sum.end(), 0.0);
  for (std::size_t n = 0; n < count; ++n) {
    AttentionInputs in = parts.inputs[n];
    in.gate = problem.inputs().gate;
    if (n == 0) in.sinks = problem.inputs().sinks;
    const Owned dq(in.q), dk(in.k), dv(in.v), dsinks(in.sinks), whole_dgate(in.gate);
    AttentionGradients to;
    to.dq = dq.view;
    to.dk = dk.view;
    to.dv = dv.view;
    if (n == 0) {
      to.dsinks = dsinks.view;
      to.dgate = whole_dgate.view;
    }
    attention_backward(to, in, {out.y, out.lse, out.attn}, problem.incoming(), problem.options());
    expect_keys(n, dk.view, dv.view, "(b) ");
    add_dq(dq);
    if (n > 0) continue;
    expect_near(dsinks.view, grad.dsinks, bound(grad.magnitude.dsinks, grad.inherited.dsinks), spec.dtype, 64,
                "(b) dsinks of " + text);
    expect_near(whole_dgate.view, grad.dgate, bound(grad.magnitude.dgate, grad.inherited.dgate), spec.dtype, 64,
                "(b) dgate of " + text);
  }
  expect_dq("(b) ");
}

void check_on_every_target(const CaseSpec& spec) {
  const TargetGuard guard;
  verify::Case problem(spec);
  for (const std::string& target : supported_targets()) {
    set_target(target);
    check_whole(problem);
  }
}

TEST(Merge, MergedParts_RangesOfKeys_EqualTheWholeInBothPasses) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const int seed : {1, 2}) {
      CaseSpec spec = everything(dtype);
      spec.seed = static_cast<std::uint64_t>(seed);
      check_on_every_target(spec);
    }
    CaseSpec spec = plain(dtype);
    check_on_every_target(spec);
    spec.gate_op = GateOp::add;
    check_on_every_target(spec);
  }
}

/// Two parts of one row of width 2.
struct Two {
  std::vector<double> attn0{1, 2}, attn1{5, -2}, lse{0.5, -1};
  std::vector<double> y{0, 0};
  double out_lse = 0;

  std::vector<MergePart> parts() const {
    return {{make_view(attn0.data(), {1, 1, 1, 2}), make_view(lse.data(), {1, 1, 1, 1})},
            {make_view(attn1.data(), {1, 1, 1, 2}), make_view(lse.data() + 1, {1, 1, 1, 1})}};
  }
  AttentionOutputs outputs() {
    AttentionOutputs out;
    out.y = make_view(y.data(), {1, 1, 1, 2});
    out.lse = make_view(&out_lse, {1, 1, 1, 1});
    return out;
  }
};

TEST(Merge, MergedOutput_SeveralParts_IsWeightedByTheirSums) {
  Two two;
  attention_merge(two.outputs(), two.parts());
  const double w = 1 / (1 + std::exp(-1.5));
  EXPECT_NEAR(two.out_lse, 0.5 + std::log1p(std::exp(-1.5)), 1e-15);
  EXPECT_NEAR(two.y[0], w * 1 + (1 - w) * 5, 1e-15);
  EXPECT_NEAR(two.y[1], w * 2 - (1 - w) * 2, 1e-15);
}

TEST(Merge, Part_WithoutVisibleKeys_IsNotRead) {
  Two two;
  two.lse = {0.5, -kInfinity};
  two.attn1 = {std::nan(""), kInfinity};
  attention_merge(two.outputs(), two.parts());
  EXPECT_EQ(two.y, (std::vector<double>{1, 2}));
  EXPECT_EQ(two.out_lse, 0.5);

  const std::vector<double> dy{1, 1};
  std::vector<double> d0{9, 9}, d1{9, 9}, dlse{9, 9};
  const std::vector<MergePartGradients> gradients{
      {make_view(d0.data(), {1, 1, 1, 2}), make_view(dlse.data(), {1, 1, 1, 1})},
      {make_view(d1.data(), {1, 1, 1, 2}), make_view(dlse.data() + 1, {1, 1, 1, 1})}};
  AttentionIncoming incoming;
  incoming.dy = make_view(dy.data(), {1, 1, 1, 2});
  attention_merge_backward(gradients, {}, two.parts(), {}, incoming);
  EXPECT_EQ(d0, dy);
  EXPECT_EQ(d1, (std::vector<double>{0, 0}));
  EXPECT_EQ(dlse, (std::vector<double>{0, 0}));

  two.lse = {-kInfinity, -kInfinity};
  attention_merge(two.outputs(), two.parts());
  EXPECT_EQ(two.y, (std::vector<double>{0, 0}));
  EXPECT_EQ(two.out_lse, -kInfinity);
}

void expect_refused(const std::function<void()>& call, const std::string& said) {
  try {
    call();
    ADD_FAILURE() << "accepted; not refused with: " << said;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
}

TEST(Merge, Merge_BadArguments_IsRefusedBeforeItWrites) {
  Two two;
  const auto merge = [&two](const std::vector<MergePart>& parts) {
    return [&two, parts] { attention_merge(two.outputs(), parts); };
  };
  two.y = {7, 7};
  expect_refused(merge({}), "attention_merge: parts is empty");
  auto parts = two.parts();
  parts[1].attn.shape[3] = 1;
  expect_refused(merge(parts), "parts[1].attn has shape (1,1,1,1) but parts[0].attn is (1,1,1,2)");
  parts = two.parts();
  parts[1].lse = {};
  expect_refused(merge(parts), "parts[1].lse is required");
  parts = two.parts();
  parts[0].attn.data = two.y.data();
  expect_refused(merge(parts), "y overlaps parts[0].attn in memory");
  two.lse[1] = kInfinity;
  expect_refused(merge(two.parts()), "parts[1].lse[0,0,0] is inf");
  two.lse[1] = 0;
  expect_refused([&] { attention_merge({}, two.parts()); }, "y, attn and lse are all absent");
  expect_refused(
      [&] {
        AttentionOutputs out = two.outputs();
        out.weights = out.y;
        attention_merge(out, two.parts());
      },
      "weights is given");
  expect_refused(
      [&] {
        AttentionOutputs out = two.outputs();
        out.max_logit = out.y;
        attention_merge(out, two.parts());
      },
      "max_logit is given but a merge has none: take the largest of the parts' max_logit");
  const float z = 0;
  expect_refused(
      [&] {
        attention_merge(two.outputs(), two.parts(), make_view(&z, {1, 1, 2, 1}));
      },
      "gate has shape (1,1,2,1)");
  EXPECT_EQ(two.y, (std::vector<double>{7, 7}));
  expect_refused([&] { attention_merge_backward({}, {}, two.parts(), {}, {}); }, "dy is required");
  AttentionIncoming incoming;
  incoming.dy = make_view(two.y.data(), {1, 1, 1, 2});
  expect_refused([&] { attention_merge_backward({}, {}, two.parts(), {}, incoming); },
                 "gradients has 0 parts but parts has 2");
}

TEST(NarrowKeys, NarrowKeys_BadRange_IsRefused) {
  verify::Case problem(everything(DType::f32));
  KeyRangeVectors vectors;
  AttentionInputs in = problem.inputs();
  expect_refused([&] { (void)narrow_keys(in, 5, 91, vectors); }, "keys 5 to 91 are asked for but");
  expect_refused([&] { (void)narrow_keys(in, -1, 9, vectors); }, "0 <= begin <= end <= S = 90");
  in.cu_seqlens_q = in.key_lengths;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "packed batch");
  in.cu_seqlens_q = {};
  in.block_table = in.key_lengths;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "block_table is given");
  in.block_table = {};
  in.key_indices = in.key_lengths;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "key_indices is given but its entries number all keys");
  in.key_indices = {};
  in.k_scale = in.key_lengths;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "k_scale has shape (1,1,1,");
  in.k_scale = {};
  in.key_lengths.shape[3] = 1;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "key_lengths has shape (1,1,1,1)");
  in.key_lengths = problem.inputs().key_lengths;
  in.key_lengths.data = static_cast<const std::byte*>(in.key_lengths.data) + 1;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "which is not aligned to the ");
  in.key_lengths.data = nullptr;
  expect_refused([&] { (void)narrow_keys(in, 0, 9, vectors); }, "but null data");
}

TEST(NarrowKeys, NarrowKeys_VectorOutOfRange_IsRefused) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  CaseSpec spec;
  spec.S = 12;
  verify::Case problem(spec);
  KeyRangeVectors vectors;
  AttentionInputs in = problem.inputs();
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(in.q.shape[0]), 0);
  in.query_offsets = make_vector_view(numbers.data(), in.q.shape[0]);
  numbers.back() = kLeast;
  expect_refused([&] { (void)narrow_keys(in, 1, 2, vectors); },
                 "] is -9223372036854775808 but must be -115292150460684");
  numbers.back() = -kMaxQueryOffset;  // attention takes it, but not one less
  expect_refused([&] { (void)narrow_keys(in, 1, 2, vectors); },
                 "query_offsets[0] is -1152921504606846976 but must be -1152921504606846975 to 1152921504606846976");
  EXPECT_NO_THROW((void)narrow_keys(in, 0, 2, vectors));
  numbers.back() = kLeast;
  in.key_lengths = in.query_offsets;
  in.query_offsets = {};
  expect_refused([&] { (void)narrow_keys(in, 1, 2, vectors); }, "] is -9223372036854775808 but must be 0 to ");
  in.key_lengths = {};
  in.q.shape[0] = std::int64_t{1} << 32;
  expect_refused([&] { (void)narrow_keys(in, 1, 2, vectors); }, "B is ");
}

TEST(NarrowKeys, NarrowKeys_SizesOfQOutOfRange_IsRefused) {
  verify::Case problem(CaseSpec{});
  KeyRangeVectors vectors;
  for (std::size_t dim = 0; dim < 4; ++dim) {
    AttentionInputs in = problem.inputs();
    in.q.shape[dim] = std::numeric_limits<std::int64_t>::min();
    if (dim == 0) in.k.shape[0] = in.v.shape[0] = in.q.shape[0];
    expect_refused([&] { (void)narrow_keys(in, 0, 1, vectors); }, "but sizes must be at least 0");
  }
  AttentionInputs in = problem.inputs();
  for (ConstTensorView* view : {&in.q, &in.k, &in.v}) view->shape = {std::int64_t{1} << 60, 0, 0, 0};
  expect_refused([&] { (void)narrow_keys(in, 0, 0, vectors); }, "B is 1152921504606846976 but must be at most ");
}

TEST(NarrowKeys, NarrowKeys_Int8Keys_NarrowsTheirScales) {
  CaseSpec spec;
  spec.Hkv = 2;
  spec.S = 12;
  spec.quantized = true;
  verify::Case problem(spec);
  KeyRangeVectors vectors;
  const AttentionInputs range = narrow_keys(problem.inputs(), 5, 9, vectors);
  for (const auto scale : {&AttentionInputs::k_scale, &AttentionInputs::v_scale}) {
    const ConstTensorView &part = range.*scale, &whole = problem.inputs().*scale;
    ASSERT_EQ(part.shape[2], 4);
    EXPECT_EQ(load(part, 0, 1, 0, 0), load(whole, 0, 1, 5, 0));
    EXPECT_EQ(load(part, 0, 1, 3, 0), load(whole, 0, 1, 8, 0));
  }
}

TEST(NarrowKeys, NarrowKeys_FirstRows_AreThoseOfTheRange) {
  CaseSpec spec;
  spec.Hkv = 2;
  spec.S = 12;
  spec.quantized = true;
  spec.first_rows = DType::f32;
  spec.first = 7;
  verify::Case problem(spec);
  KeyRangeVectors vectors;
  const AttentionInputs range = narrow_keys(problem.inputs(), 5, 9, vectors);
  for (const auto rows : {&AttentionInputs::k_first, &AttentionInputs::v_first}) {
    const ConstTensorView &part = range.*rows, &whole = problem.inputs().*rows;
    ASSERT_EQ(part.shape[2], 2);
    EXPECT_EQ(load(part, 0, 1, 1, 0), load(whole, 0, 1, 6, 0));
    EXPECT_FALSE((narrow_keys(problem.inputs(), 7, 9, vectors).*rows).present());
  }
}

}  // namespace
}  // namespace headgate
