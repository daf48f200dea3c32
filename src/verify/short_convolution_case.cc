// SPDX-License-Identifier: Apache-2.0
#include "verify/short_convolution_case.hpp"

#include <fmt/format.h>

#include <array>
#include <set>

#include "library/core/element.hpp"
#include "library/core/gate_functions.hpp"
#include "verify/fill.hpp"

namespace headgate::verify {
namespace {

enum ConvolutionStream : std::uint64_t {
  kConvolutionX = 201,
  kConvolutionWeight,
  kConvolutionBias,
  kConvolutionState,
  kConvolutionDy,
  kConvolutionStateGradient,
  kConvolutionSequences,
  kConvolutionSnapshots
};

constexpr std::array kConvolutionDTypes{DType::f32, DType::f64, DType::bf16, DType::f16};

/// Numbers of tokens near two limits: the number of taps, and the number of tokens that a kernel processes at a time.
constexpr std::array<std::int64_t, 14> kConvolutionTokens{1, 2, 3, 5, 7, 8, 9, 16, 33, 64, 65, 127, 256, 500};
/// Numbers of channels around multiples of the vector length.
constexpr std::array<std::int64_t, 12> kConvolutionChannels{1, 2, 5, 8, 16, 17, 31, 32, 48, 67, 100, 131};

/// Returns a spec with a state, a bias and all gradients.
ConvolutionCaseSpec full_convolution(DType dtype, std::int64_t T, std::int64_t C, std::int64_t K) {
  ConvolutionCaseSpec spec;
  spec.dtype = dtype;
  spec.T = T;
  spec.C = C;
  spec.K = K;
  spec.bias = spec.state = spec.new_state = spec.dstate = dtype;
  return spec;
}

void add_taps(std::vector<ConvolutionCaseSpec>& list, DType dtype) {
  for (std::int64_t K = kMinTaps; K <= kMaxTaps; ++K) {
    // Uses a set, because some of these sizes are equal: if K is 2, K − 1 is 1.
    for (const std::int64_t T : std::set<std::int64_t>{0, 1, K - 1, K + 1, 130}) {
      ConvolutionCaseSpec spec = full_convolution(dtype, T, 37, K);
      spec.B = 2;
      list.push_back(spec);
      spec.channels_first = true;
      spec.activation = GateFn::none;
      list.push_back(spec);
    }
  }
}

void add_layouts(std::vector<ConvolutionCaseSpec>& list, DType dtype) {
  for (const Layout layout : {Layout::broadcast, Layout::reversed, Layout::gapped}) {
    ConvolutionCaseSpec spec = full_convolution(dtype, 66, 19, 4);
    spec.B = 2;
    spec.layout = layout;
    spec.threads = 2;
    list.push_back(spec);
    spec.weight_f32 = true;
    spec.in_place = true;
    list.push_back(spec);
  }
}

/// Adds cases without bias and state, and cases with an f32 bias and f32 states for x of any dtype.
void add_states(std::vector<ConvolutionCaseSpec>& list, DType dtype) {
  ConvolutionCaseSpec bare = full_convolution(dtype, 50, 16, 4);
  bare.bias = bare.state = bare.new_state = bare.dstate = DType::none;
  list.push_back(bare);
  for (const std::int64_t T : {2, 50}) {
    ConvolutionCaseSpec spec = full_convolution(dtype, T, 16, 4);
    spec.bias = spec.state = spec.new_state = spec.dstate = DType::f32;
    spec.absent_gradients = kConvolutionDx;
    list.push_back(spec);
    spec.in_place = true;
    list.push_back(spec);
  }
}

void add_packed(std::vector<ConvolutionCaseSpec>& list, DType dtype) {
  for (const bool channels_first : {false, true}) {
    ConvolutionCaseSpec spec = full_convolution(dtype, 300, 20, 4);
    spec.channels_first = channels_first;
    spec.cu_seqlens = DType::i32;
    spec.packed = 6;
    spec.threads = 2;
    list.push_back(spec);
    spec.cu_seqlens = DType::i64;
    spec.packed_tokens = {1, 128, 0, 3, 2, 166};
    spec.in_place = true;
    list.push_back(spec);
    spec.snapshots = {.dtype = dtype, .count = 5};
    list.push_back(spec);
  }
}

}  // namespace

std::string describe(const ConvolutionCaseSpec& spec) {
  std::string text = fmt::format("short convolution B={} T={} C={} K={} {} activation={}", spec.B, spec.T, spec.C,
                                 spec.K, dtype_name(spec.dtype), word_of(spec.activation));
  const auto add = [&text](bool present, const std::string& part) {
    if (present) text += " " + part;
  };
  add(spec.layout != Layout::bhtd, fmt::format("layout={}", word_of(spec.layout)));
  add(spec.channels_first, "channels_first");
  add(spec.weight_f32, "weight=f32");
  add(spec.bias != DType::none, fmt::format("bias={}", dtype_name(spec.bias)));
  add(spec.state != DType::none, fmt::format("state={}{}", dtype_name(spec.state), spec.in_place ? ":in_place" : ""));
  add(spec.new_state != DType::none && !spec.in_place, fmt::format("new_state={}", dtype_name(spec.new_state)));
  add(spec.dstate != DType::none, fmt::format("dstate={}", dtype_name(spec.dstate)));
  add(spec.absent_gradients != 0, fmt::format("absent_gradients={:#x}", spec.absent_gradients));
  add(spec.threads != 1, fmt::format("threads={}", spec.threads));
  add(spec.cu_seqlens != DType::none,
      fmt::format("packed={}:{}{}", spec.packed, dtype_name(spec.cu_seqlens),
                  spec.packed_tokens.empty() ? "" : fmt::format(":{}", fmt::join(spec.packed_tokens, ","))));
  add(spec.snapshots.present(), describe(spec.snapshots));
  return text + fmt::format(" seed={}", spec.seed);
}

ConvolutionCaseSpec draw_convolution_spec(const Pick& pick) {
  ConvolutionCaseSpec spec;
  spec.B = 1 + pick(3);
  spec.T = one_of(pick, kConvolutionTokens);
  spec.C = one_of(pick, kConvolutionChannels);
  spec.K = kMinTaps + pick(kMaxTaps - kMinTaps + 1);
  spec.dtype = one_of(pick, kConvolutionDTypes);
  if (maybe(pick, 3)) spec.activation = GateFn::none;
  spec.layout = one_of(pick, std::array{Layout::bhtd, Layout::broadcast, Layout::reversed, Layout::gapped});
  spec.channels_first = maybe(pick, 3);
  spec.weight_f32 = maybe(pick, 2);
  const std::array kinds{DType::none, spec.dtype, DType::f32};
  spec.bias = one_of(pick, kinds);
  spec.state = one_of(pick, kinds);
  spec.in_place = spec.state != DType::none && maybe(pick, 3);
  spec.new_state = one_of(pick, kinds);
  spec.dstate = one_of(pick, kinds);
  spec.absent_gradients = maybe(pick, 4) ? static_cast<unsigned>(pick(16)) : 0U;
  spec.threads = 1 + static_cast<int>(pick(3));
  spec.seed = static_cast<std::uint64_t>(1 + pick(1000));
  if (maybe(pick, 3)) {
    spec.B = 1;
    spec.cu_seqlens = one_of(pick, std::array{DType::i32, DType::i64});
    spec.packed = one_of(pick, std::array<std::int64_t, 5>{2, 1, 3, 7, 20});
  }
  spec.snapshots = draw_snapshots(pick, {spec.dtype, DType::f32});
  return spec;
}

ConvolutionCaseSpec random_convolution_spec(std::uint64_t seed) { return drawn_at_random(seed, draw_convolution_spec); }

std::vector<ConvolutionCaseSpec> standard_convolution_cases() {
  std::vector<ConvolutionCaseSpec> list;
  for (const DType dtype : kConvolutionDTypes) {
    add_taps(list, dtype);
    add_layouts(list, dtype);
    add_states(list, dtype);
    add_packed(list, dtype);
  }
  std::uint64_t seed = 1;
  for (ConvolutionCaseSpec& spec : list) spec.seed = seed++;
  return list;
}

ConvolutionCase::ConvolutionCase(const ConvolutionCaseSpec& spec, Placement placement, Passes passes)
    : OperationCase(spec, placement) {
  place_inputs();
  place_outputs();
  if (has_backward(passes)) place_gradients();
  poison_outputs();
}

/// Allocates a tensor (B,1,T,C), such as x, y or dy.
TensorView ConvolutionCase::place_rows(Slabs& group, const std::string& name, std::uint32_t repeats) {
  const ConvolutionCaseSpec& s = spec_;
  const Shape shape{s.B, 1, s.T, s.C};
  if (!s.channels_first) return place(group, name, s.dtype, shape, repeats);
  return group.add(name, placement_).place(s.dtype, shape, {s.T * s.C, s.T * s.C, 1, s.T});
}

/// Allocates a tensor of states. `each`: number of states per sequence.
TensorView ConvolutionCase::place_state(Slabs& group, const std::string& name, DType dtype, std::int64_t each) {
  if (dtype == DType::none) return {};
  return place(group, name, dtype, {spec_.sequences() * each, 1, spec_.K - 1, spec_.C});
}

void ConvolutionCase::place_inputs() {
  const ConvolutionCaseSpec& s = spec_;
  const TensorView x = place_rows(input_slabs_, "x", kRepeatB);
  const TensorView weight = place(input_slabs_, "weight", s.weight_f32 ? DType::f32 : s.dtype, {1, 1, s.C, s.K});
  TensorView bias, bounds;
  if (s.bias != DType::none) bias = place(input_slabs_, "bias", s.bias, {1, 1, 1, s.C});
  state_ = place_state(input_slabs_, "state", s.state);
  if (s.cu_seqlens != DType::none) {
    bounds = place(input_slabs_, "cu_seqlens", s.cu_seqlens, {1, 1, 1, s.packed + 1});
    fill_bounds(bounds, s.T, s.packed_tokens, Random(s.seed, kConvolutionSequences));
  }
  if (s.snapshots.present()) {
    snapshot_lengths_ =
        place(input_slabs_, "snapshot_lengths", s.snapshots.lengths, s.snapshots.shape_of_lengths(s.sequences()));
    fill_snapshot_lengths(snapshot_lengths_, bounds, s.T, Random(s.seed, kConvolutionSnapshots));
  }
  fill_normal(x, s.seed, kConvolutionX, 1.0);
  fill_normal(weight, s.seed, kConvolutionWeight, 1.0);
  fill_normal(bias, s.seed, kConvolutionBias, 1.0);
  fill_normal(state_, s.seed, kConvolutionState, 1.0);
  for_oracle_ = {x, weight, bias, state_, bounds};
}

void ConvolutionCase::place_outputs() {
  outputs_.y = place_rows(output_slabs_, "y");
  outputs_.state = place_state(output_slabs_, "new state", spec_.in_place ? spec_.state : spec_.new_state);
  outputs_.snapshots = place_state(output_slabs_, "snapshots", spec_.snapshots.dtype, spec_.snapshots.count);
  inputs_ = for_oracle_;
  if (spec_.in_place) inputs_.state = outputs_.state;
}

void ConvolutionCase::place_gradients() {
  const ConvolutionCaseSpec& s = spec_;
  const TensorView dy = place_rows(input_slabs_, "dy", kRepeatB);
  const TensorView dstate = place_state(input_slabs_, "incoming dstate", s.dstate);
  fill_normal(dy, s.seed, kConvolutionDy, 1.0);
  fill_normal(dstate, s.seed, kConvolutionStateGradient, 1.0);
  incoming_ = {dy, dstate};
  ShortConvolutionGradients& g = gradients_;
  g = {place_rows(gradient_slabs_, "dx"), place_gradient("dweight", inputs_.weight),
       place_gradient("dbias", inputs_.bias), place_gradient("dstate", inputs_.state)};
  omit_absent({&g.dx, &g.dweight, &g.dbias, &g.dstate});
}

void ConvolutionCase::poison_outputs() {
  OperationCase::poison_outputs();
  if (!spec_.in_place) return;
  for_each_index(state_.shape, [&](std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t c) {
    store(outputs_.state, n, h, i, c, load(state_, n, h, i, c));
  });
}

ShortConvolutionInputs ConvolutionCase::forward_inputs() const {
  ShortConvolutionInputs in = inputs_;
  in.snapshot_lengths = snapshot_lengths_;
  return in;
}

const reference::ShortConvolutionForward& ConvolutionCase::expected_forward() {
  if (!forward_) {
    ShortConvolutionInputs in = for_oracle_;
    in.snapshot_lengths = snapshot_lengths_;
    forward_ = reference::short_convolution(in, options_);
  }
  return *forward_;
}

const reference::ShortConvolutionBackward& ConvolutionCase::expected_backward() {
  if (!backward_) backward_ = reference::short_convolution_backward(for_oracle_, incoming_, options_);
  return *backward_;
}

std::optional<std::string> check_forward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels,
                                              WorstError* worst) {
  const ConvolutionCaseSpec& spec = problem.spec();
  const ShortConvolutionOutputs& out = problem.outputs();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("short_convolution_forward", describing(problem),
                             [&] { kernels.forward(out, problem.forward_inputs(), problem.options()); })) {
    return error;
  }
  const reference::ShortConvolutionForward& want = problem.expected_forward();
  const auto rule = [&spec](const TensorView& view, std::int64_t terms) {
    return Tolerance::of(spec.dtype, view.dtype, terms);
  };
  return mismatch_in({{"y", out.y, want.y, want.magnitude.y, nullptr, nullptr, rule(out.y, spec.K + 1)},
                      {"new state", out.state, want.state, want.magnitude.state, nullptr, nullptr, rule(out.state, 1)},
                      {"snapshots", out.snapshots, want.snapshots, want.magnitude.snapshots, nullptr, nullptr,
                       rule(out.snapshots, 1)}},
                     problem, worst);
}

std::optional<std::string> check_backward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels,
                                               WorstError* worst) {
  const ConvolutionCaseSpec& spec = problem.spec();
  const ShortConvolutionGradients& out = problem.gradients();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("short_convolution_backward", describing(problem),
                             [&] { kernels.backward(out, problem.inputs(), problem.incoming(), problem.options()); })) {
    return error;
  }
  const reference::ShortConvolutionBackward& want = problem.expected_backward();
  const reference::ShortConvolutionGradientArrays& m = want.magnitude;
  const auto rule = [&spec](const TensorView& view, std::int64_t terms) {
    return Tolerance::of(spec.dtype, view.dtype, terms);
  };
  // `taps`: number of terms in the longest chain of dependent sums behind an element of dx or dstate.
  // The element is a sum of K products with ds. Each ds depends on s, a sum of the bias and K products.
  const std::int64_t taps = 2 * spec.K + 2, rows = spec.B * spec.T + spec.K;
  return mismatch_in({{"dx", out.dx, want.dx, m.dx, nullptr, nullptr, rule(out.dx, taps)},
                      {"dweight", out.dweight, want.dweight, m.dweight, nullptr, nullptr, rule(out.dweight, rows)},
                      {"dbias", out.dbias, want.dbias, m.dbias, nullptr, nullptr, rule(out.dbias, rows)},
                      {"dstate", out.dstate, want.dstate, m.dstate, nullptr, nullptr, rule(out.dstate, taps)}},
                     problem, worst);
}

std::optional<std::string> check_same_bits(ConvolutionCase& problem, const ConvolutionKernels& kernels) {
  return thread_mismatch(problem, [&] {
    problem.poison_outputs();
    problem.poison_gradients();
    kernels.backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
    kernels.forward(problem.outputs(), problem.forward_inputs(), problem.options());
    return problem.written_bytes();
  });
}

}  // namespace headgate::verify
