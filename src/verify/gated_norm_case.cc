// SPDX-License-Identifier: Apache-2.0
#include "verify/gated_norm_case.hpp"

#include <fmt/format.h>

#include <array>

#include "library/core/gate_functions.hpp"
#include "verify/fill.hpp"

namespace headgate::verify {
namespace {

enum NormStream : std::uint64_t { kNormX = 301, kNormWeight, kNormGate, kNormDy };

constexpr std::array kNormDTypes{DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr std::array kNormLayouts{Layout::bhtd, Layout::bthd, Layout::broadcast, Layout::reversed, Layout::gapped};
constexpr std::array<std::int64_t, 10> kNormTokens{1, 2, 3, 5, 8, 16, 17, 33, 64, 100};

/// Returns a spec with a weight, a gate and all gradients.
NormCaseSpec full_norm(DType dtype, std::int64_t H, std::int64_t T, std::int64_t D) {
  NormCaseSpec spec;
  spec.dtype = spec.weight = spec.gate = dtype;
  spec.H = H;
  spec.T = T;
  spec.D = D;
  return spec;
}

void add_gates(std::vector<NormCaseSpec>& list, DType dtype) {
  for (const auto& row : Words<GateFn>::kAll) {
    for (const bool weight_of_head : {false, true}) {
      NormCaseSpec spec = full_norm(dtype, 3, 34, 32);
      spec.B = 2;
      spec.gate_fn = row.value;
      spec.weight_of_head = weight_of_head;
      list.push_back(spec);
    }
  }
  for (const DType weight : {DType::none, DType::f32}) {
    for (const DType gate : {DType::none, DType::f32}) {
      NormCaseSpec spec = full_norm(dtype, 2, 9, 24);
      spec.weight = weight;
      spec.gate = gate;
      spec.absent_gradients = weight == DType::none ? 0U : kNormDx;
      list.push_back(spec);
    }
  }
}

void add_sizes(std::vector<NormCaseSpec>& list, DType dtype) {
  for (const std::int64_t D : kWidths) list.push_back(full_norm(dtype, 2, 7, D));
  for (const std::int64_t T : {0, 1, 200}) {
    NormCaseSpec spec = full_norm(dtype, 5, T, 16);
    spec.threads = 2;
    list.push_back(spec);
  }
}

void add_layouts(std::vector<NormCaseSpec>& list, DType dtype) {
  for (const Layout layout : kNormLayouts) {
    NormCaseSpec spec = full_norm(dtype, 4, 21, 40);
    spec.B = 2;
    spec.layout = layout;
    spec.weight_of_head = true;
    spec.threads = 2;
    list.push_back(spec);
  }
}

/// Adds cases in which the squares of x are much smaller than eps, or much larger.
void add_magnitudes(std::vector<NormCaseSpec>& list, DType dtype) {
  for (const double magnitude : {1e-4, 1e3}) {
    for (const double eps : {1e-6, 1.0}) {
      NormCaseSpec spec = full_norm(dtype, 2, 11, 48);
      spec.magnitude = magnitude;
      spec.eps = eps;
      list.push_back(spec);
    }
  }
}

}  // namespace

std::string describe(const NormCaseSpec& spec) {
  std::string text = fmt::format("gated norm B={} H={} T={} D={} {} eps={}", spec.B, spec.H, spec.T, spec.D,
                                 dtype_name(spec.dtype), spec.eps);
  const auto add = [&text](bool present, const std::string& part) {
    if (present) text += " " + part;
  };
  add(spec.layout != Layout::bhtd, fmt::format("layout={}", word_of(spec.layout)));
  add(spec.weight != DType::none,
      fmt::format("weight={}{}", dtype_name(spec.weight), spec.weight_of_head ? ":of_head" : ""));
  add(spec.gate != DType::none, fmt::format("gate={}:{}", dtype_name(spec.gate), word_of(spec.gate_fn)));
  add(spec.magnitude != 1.0, fmt::format("magnitude={}", spec.magnitude));
  add(spec.absent_gradients != 0, fmt::format("absent_gradients={:#x}", spec.absent_gradients));
  add(spec.threads != 1, fmt::format("threads={}", spec.threads));
  return text + fmt::format(" seed={}", spec.seed);
}

NormCaseSpec draw_norm_spec(const Pick& pick) {
  NormCaseSpec spec;
  spec.B = 1 + pick(3);
  spec.H = 1 + pick(9);
  spec.T = one_of(pick, kNormTokens);
  spec.D = one_of(pick, kWidths);
  spec.dtype = one_of(pick, kNormDTypes);
  spec.layout = one_of(pick, kNormLayouts);
  const std::array kinds{DType::none, spec.dtype, DType::f32};
  spec.weight = one_of(pick, kinds);
  spec.weight_of_head = maybe(pick, 2);
  spec.gate = one_of(pick, kinds);
  spec.gate_fn = one_of(pick, Words<GateFn>::kAll).value;
  spec.eps = one_of(pick, std::array{1e-6, 1e-5, 0.01, 1.0});
  spec.magnitude = one_of(pick, std::array{1.0, 1.0, 1e-3, 100.0});
  spec.absent_gradients = maybe(pick, 4) ? static_cast<unsigned>(pick(8)) : 0U;
  spec.threads = 1 + static_cast<int>(pick(3));
  spec.seed = static_cast<std::uint64_t>(1 + pick(1000));
  return spec;
}

NormCaseSpec random_norm_spec(std::uint64_t seed) { return drawn_at_random(seed, draw_norm_spec); }

std::vector<NormCaseSpec> standard_norm_cases() {
  std::vector<NormCaseSpec> list;
  for (const DType dtype : kNormDTypes) {
    add_gates(list, dtype);
    add_sizes(list, dtype);
    add_layouts(list, dtype);
    add_magnitudes(list, dtype);
  }
  std::uint64_t seed = 1;
  for (NormCaseSpec& spec : list) spec.seed = seed++;
  return list;
}

NormCase::NormCase(const NormCaseSpec& spec, Placement placement, Passes passes) : OperationCase(spec, placement) {
  place_inputs();
  y_ = place(output_slabs_, "y", spec.dtype, inputs_.x.shape);
  if (has_backward(passes)) place_gradients();
}

void NormCase::place_inputs() {
  const NormCaseSpec& s = spec_;
  const Shape rows{s.B, s.H, s.T, s.D};
  const TensorView x = place(input_slabs_, "x", s.dtype, rows, kRepeatB);
  fill_normal(x, s.seed, kNormX, s.magnitude);
  inputs_.x = x;
  if (s.weight != DType::none) {
    const TensorView weight = place(input_slabs_, "weight", s.weight, {1, s.weight_of_head ? s.H : 1, 1, s.D});
    fill_normal(weight, s.seed, kNormWeight, 1.0);
    inputs_.weight = weight;
  }
  if (s.gate != DType::none) {
    const TensorView gate = place(input_slabs_, "gate", s.gate, rows, kRepeatH);
    fill_normal(gate, s.seed, kNormGate, 2.0);
    inputs_.gate = gate;
  }
}

void NormCase::place_gradients() {
  const TensorView dy = place(input_slabs_, "dy", spec_.dtype, inputs_.x.shape, kRepeatB);
  fill_normal(dy, spec_.seed, kNormDy, 1.0);
  dy_ = dy;
  gradients_ = {place_gradient("dx", inputs_.x), place_gradient("dweight", inputs_.weight), {}};
  if (spec_.is_gated()) gradients_.dgate = place_gradient("dgate", inputs_.gate);
  omit_absent({&gradients_.dx, &gradients_.dweight, &gradients_.dgate});
}

const reference::GatedNormForward& NormCase::expected_forward() {
  if (!forward_) forward_ = reference::gated_norm(inputs_, options_);
  return *forward_;
}

const reference::GatedNormBackward& NormCase::expected_backward() {
  if (!backward_) backward_ = reference::gated_norm_backward(inputs_, dy_, options_);
  return *backward_;
}

std::optional<std::string> check_forward_case(NormCase& problem, const NormKernels& kernels, WorstError* worst) {
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("gated_norm_forward", describing(problem),
                             [&] { kernels.forward(problem.y(), problem.inputs(), problem.options()); })) {
    return error;
  }
  const reference::GatedNormForward& want = problem.expected_forward();
  const NormCaseSpec& spec = problem.spec();
  const Tolerance rule = Tolerance::of(spec.dtype, problem.y().dtype, spec.D);
  return mismatch_in({{"y", problem.y(), want.y, want.magnitude, nullptr, nullptr, rule}}, problem, worst);
}

std::optional<std::string> check_backward_case(NormCase& problem, const NormKernels& kernels, WorstError* worst) {
  problem.poison_outputs();
  problem.poison_gradients();
  const GatedNormGradients& out = problem.gradients();
  if (auto error = thrown_by("gated_norm_backward", describing(problem),
                             [&] { kernels.backward(out, problem.inputs(), problem.dy(), problem.options()); })) {
    return error;
  }
  const reference::GatedNormBackward& want = problem.expected_backward();
  const reference::GatedNormGradientArrays& m = want.magnitude;
  const NormCaseSpec& spec = problem.spec();
  const auto rule = [&spec](const TensorView& view, std::int64_t terms) {
    return Tolerance::of(spec.dtype, view.dtype, terms);
  };
  const std::int64_t rows = spec.B * spec.H * spec.T;
  return mismatch_in(
      {{"dx", out.dx, want.dx, m.dx, nullptr, nullptr, rule(out.dx, spec.D)},
       {"dweight", out.dweight, want.dweight, m.dweight, nullptr, nullptr, rule(out.dweight, spec.D + rows)},
       {"dgate", out.dgate, want.dgate, m.dgate, nullptr, nullptr, rule(out.dgate, spec.D)}},
      problem, worst);
}

std::optional<std::string> check_same_bits(NormCase& problem, const NormKernels& kernels) {
  return thread_mismatch(problem, [&] {
    problem.poison_outputs();
    problem.poison_gradients();
    kernels.backward(problem.gradients(), problem.inputs(), problem.dy(), problem.options());
    kernels.forward(problem.y(), problem.inputs(), problem.options());
    return problem.written_bytes();
  });
}

}  // namespace headgate::verify
